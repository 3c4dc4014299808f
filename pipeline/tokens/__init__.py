"""Tokens: k-mer codes, tokenizers, masking, batches, and the score that compares models."""
