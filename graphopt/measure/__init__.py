"""Measuring on this machine, in processes of their own."""
