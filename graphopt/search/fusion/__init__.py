"""Compilers' rules of fusion."""
