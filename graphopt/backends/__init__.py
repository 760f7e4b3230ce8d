"""graphopt as a compiler in the harnesses of others, and compilers held against eager execution."""
