"""Attention over packed sequences: the choice of an implementation and its kernels."""
