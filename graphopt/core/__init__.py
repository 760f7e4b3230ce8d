"""The nouns: graphs, machines, plans, kernels."""
