"""The update of weights: advantages, losses, passes, the optimizer."""
