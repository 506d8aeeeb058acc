"""Answers of other shapes than the k nearest rows: limited by group, unlike each other, page by page."""
