"""HTTP between the parts of a run."""
