"""Rows and nodes on executors: which stand for each other, which are gone, which are found by themselves."""
