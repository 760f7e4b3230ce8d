"""Records on disk: rows, decision files, packs."""
