"""Recall as it is measured: of live queries, and of trials for tuning."""
