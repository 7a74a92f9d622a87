"""Generates answers without training, scores stored ones, and computes statistics."""
