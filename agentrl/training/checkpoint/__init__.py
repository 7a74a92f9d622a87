"""Checkpoints: write, find, resume and merge them; lock a run's folder."""
