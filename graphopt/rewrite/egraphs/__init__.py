"""Classes of equal terms."""
