"""What one kernel costs: rooflines, XLA's GPU model, a learned one; exact deltas when one op changes sides."""
