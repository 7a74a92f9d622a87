"""FIRE sampling (Chen et al., arXiv 2410.21236): a very hot first token, then regular sampling.

The first token is drawn here, among the engine's likeliest tokens with their log-probs. So every engine supports it,
and the ledger gets the log-prob that the trainer computes: that at `rollout.temperature`. The token is drawn
from a flatter distribution on purpose; importance weights do not correct that.
"""

from dataclasses import replace
from math import exp, isfinite
from random import Random

from agentrl.engines.engine import Generation, Sampling

TEMPERATURE = 30.0
CANDIDATES = 16
"""Both values are the paper's."""


def redraw_first_token(generation: Generation, sampling: Sampling) -> Generation:
    """The generation with its first token drawn again; its finish_reason "abort" means that the rest must follow."""
    if not generation.token_ids:
        return generation
    drawn = (generation.token_ids[0], generation.logprobs[0])
    known = [(token, logprob) for token, logprob in generation.candidates if isfinite(logprob)] or [drawn]
    heat = sampling.temperature / TEMPERATURE
    likeliest = max(logprob for _, logprob in known)
    weights = [exp((logprob - likeliest) * heat) for _, logprob in known]
    token, logprob = Random(sampling.seed).choices(known, weights)[0]
    stops = not sampling.ignore_eos and token in sampling.stop_token_ids
    return replace(generation, token_ids=[token], logprobs=[logprob], finish_reason="stop" if stops else "abort")
