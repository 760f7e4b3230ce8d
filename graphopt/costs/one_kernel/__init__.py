"""The cost of one kernel: rooflines, XLA's GPU model, a learned one; exact deltas for the flip of one op."""
