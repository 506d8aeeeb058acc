"""Binding: how a version or a statistics file comes to belong to a snapshot, stays, and goes."""
