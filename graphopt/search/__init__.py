"""Classical optimisers. No torch."""
