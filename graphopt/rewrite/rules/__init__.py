"""Rules, and finding where they match."""
