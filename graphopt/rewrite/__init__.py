"""Programs, rewrite rules, e-graphs, and searches over programs."""
