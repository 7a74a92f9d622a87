"""Checks a run before it spends GPU time. `preflight` comes without what the other checks need."""
