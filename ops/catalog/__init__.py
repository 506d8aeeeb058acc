"""Catalogs: connections, requests, and what a catalog sends or forbids."""
