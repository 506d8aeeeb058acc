"""Shards: how they are read, and which of their vectors stay where they lie."""
