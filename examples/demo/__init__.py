"""`make demo`: everything once, for real, on one machine."""
