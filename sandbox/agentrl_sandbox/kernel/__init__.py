"""System calls that Python does not wrap, by ctypes."""
