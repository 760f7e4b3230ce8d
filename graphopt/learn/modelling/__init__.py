"""Learned models of time, which are searched without evaluations: of kernels, and of whole runs."""
