"""Images and videos: where they come from, and what a model gets of them.

Invariant: an image is processed once. Its `Medium` holds the tokens that stand for it and the tensors that the model
computes their embeddings from; both travel with the token ledger, in order, from the prompt to the optimizer.
"""
