"""Proof that a version is its snapshot: before it is published, and whenever it is asked for."""
