"""Runs code that a model wrote, isolated from the host and from other runs."""

__version__ = "0.4.0"
