"""torch modules as graphs, traced without computing."""
