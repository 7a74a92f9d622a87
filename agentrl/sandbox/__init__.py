"""Runs code that a model wrote: safely, fast, and without turning trouble of its own into a verdict."""
