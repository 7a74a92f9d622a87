"""Networks: loading and writing them, attention, log-probs, adapters, value and reward models."""
