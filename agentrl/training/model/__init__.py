"""Networks: load and write them, attention, log-probs, adapters, value and reward models."""
