"""Runs the work in this process or on Ray workers."""
