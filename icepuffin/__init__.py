"""Theta sketches and vector indexes for every snapshot of an Apache Iceberg table."""
