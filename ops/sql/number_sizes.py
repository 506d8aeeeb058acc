"""How long numbers in statements may be. Imports nothing, not to delay an error."""

MOST_DIGITS = 1_000
"""Digits of a number, at most; Python refuses 4,301, and no column has more than 38"""
