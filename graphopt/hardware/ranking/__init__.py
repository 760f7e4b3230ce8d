"""How well cost models rank: measured plans, and a model of them fitted to what their code does."""
