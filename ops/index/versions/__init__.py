"""Versions that there are: their files opened, their sizes, their packs, what was measured of them."""
