"""Programs: hash-consed terms, their vocabulary and meaning."""
