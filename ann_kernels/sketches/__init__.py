"""Sketches of distinct values, and the hashes that they are of."""
