"""ANN indexes of a table: define, materialise for a snapshot, keep in shape, drop."""
