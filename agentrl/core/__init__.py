"""The ground that every room stands on: errors, user code, files, threads. Imports nothing else of agentrl."""
