"""One rollout as data: row, messages, token ledger, media, outcome. Imports only `core`.

The modules are imported one by one, for rows and messages need no PyTorch.
"""
