"""Rewards: the user's function, the scores of tools and interaction, and their sum.

The modules are imported one by one, because a process that calls one function needs no configuration.
"""
