"""Pages: one self-contained HTML file of an answer (`answer.html`) or of a study (`graphopt report DIR --html`)."""
