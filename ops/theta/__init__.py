"""Theta sketches of a snapshot: counted per data file, united, registered as its standard statistics."""
