"""Training with Lightning: modules, data, checkpoints."""
