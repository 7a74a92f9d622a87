"""Hypothesis without a time limit per example: the first call of a torch function takes its time."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None, max_examples=25)
settings.load_profile("untimed")
