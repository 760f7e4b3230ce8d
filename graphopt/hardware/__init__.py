"""Real machines: measuring, compilers, and the application of answers."""
