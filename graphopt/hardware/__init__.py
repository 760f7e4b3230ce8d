"""What runs on real machines: measuring, compilers, and what applies answers."""
