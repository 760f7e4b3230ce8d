"""Encoders: networks that read a graph, and the features they read."""
