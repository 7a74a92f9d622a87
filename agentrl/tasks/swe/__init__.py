"""Rows of SWE sets: an issue of a repository, and the tests that a right change passes."""
