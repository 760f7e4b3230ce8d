"""Models of packages that anyone can install, as graphs: what there is, how it is built, who captures it."""
