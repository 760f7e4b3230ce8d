"""What is kept on disk: rows, decision files, packs."""
