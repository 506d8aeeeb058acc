"""Recall: curves, measured points, intervals, and the recall of a shard."""
