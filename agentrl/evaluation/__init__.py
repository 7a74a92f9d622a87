"""Answers without training: making them, scoring stored ones, and what the scores say."""
