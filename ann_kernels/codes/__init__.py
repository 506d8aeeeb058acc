"""Codes of vectors: bytes, half bytes, signs, products, rotated codes; centroids and cells."""
