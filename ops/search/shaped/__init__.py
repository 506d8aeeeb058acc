"""Answers of other shapes than the k nearest rows: limited by group, or unlike each other."""
