"""Texts: their words, lists of the rows that have a word, and rows ranked by BM25."""
