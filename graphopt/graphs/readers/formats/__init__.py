"""Graph files: this project's own and those of other systems."""
