"""The catalog's side of things: snapshots, live rows, differences, bindings, statistics."""
