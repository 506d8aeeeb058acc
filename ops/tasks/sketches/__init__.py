"""Sketches on executors: plans of tasks, and columns of data files as theta sketches."""
