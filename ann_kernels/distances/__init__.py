"""Distances: prepared vectors, exact and bounded distances, the nearest of many."""
