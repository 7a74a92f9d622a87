"""Trajectories on disk: one JSONL file a step, one trajectory a line, and a hidden index of each file for viewers."""
