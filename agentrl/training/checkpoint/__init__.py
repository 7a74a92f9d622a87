"""Checkpoints: writing, finding, resuming and merging them; which run owns a folder."""
