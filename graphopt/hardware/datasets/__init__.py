"""Data sets of programs, as compilers see them."""
