"""`agentrl view`: a local web page that shows what runs did: curves, conversations, timelines.

Reads the files that `tracking` writes and nothing else: no network, no tokenizer, no torch.
"""
