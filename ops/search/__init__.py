"""Search: open an index of a table at a snapshot, and find the nearest rows."""
