"""Checks across keys, by what they look at."""
