"""Models of packages that anyone can install, as graphs: their catalogue, construction and capture."""
