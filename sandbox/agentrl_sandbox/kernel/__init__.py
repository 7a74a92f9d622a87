"""System calls that Python has no name for, by ctypes."""
