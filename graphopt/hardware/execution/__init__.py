"""Captured torch programs run op by op, in a chosen order, with the bytes that live meanwhile."""
