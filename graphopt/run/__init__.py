"""One cell, and many."""
