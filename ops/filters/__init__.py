"""Filters: the text of a condition, what it means, and which rows satisfy it."""
