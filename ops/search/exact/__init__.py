"""Exact search: rows of data files compared with queries, all of them or those that may be near enough."""
