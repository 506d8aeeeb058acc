"""Graphs: built in bulk, inserted into, repaired, walked."""
