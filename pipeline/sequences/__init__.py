"""Sequences before they become tokens: alphabets, file readers, splits."""
