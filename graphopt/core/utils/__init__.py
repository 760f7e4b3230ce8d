"""Files, processes, the terminal."""
