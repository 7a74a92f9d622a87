"""Checks the sampling of a request and limits it to the model's length, the same way for every engine."""

from dataclasses import replace

from agentrl.core.errors import UserError
from agentrl.engines.engine import Sampling


def within(sampling: Sampling, prompt: int, model: int) -> Sampling:
    """The sampling, limited to the room after `prompt` tokens of a sequence of `model`. Raises UserError when there is
    no room, or when a setting is out of range."""
    _check(sampling)
    if not prompt:
        raise UserError("the prompt is empty: an engine needs at least one token to continue")
    if prompt >= model:
        raise UserError(
            f"a prompt of {prompt} tokens leaves no room within rollout.max_model_len={model}: raise it, or shorten "
            "the prompt"
        )
    return replace(sampling, max_new_tokens=min(sampling.max_new_tokens, model - prompt))


def _check(sampling: Sampling) -> None:
    wrong = [
        (sampling.max_new_tokens < 1, f"max_new_tokens={sampling.max_new_tokens}: give 1 or more"),
        (not 0 <= sampling.temperature < float("inf"), f"temperature={sampling.temperature}: give 0 (greedy) or more"),
        (not 0 < sampling.top_p <= 1, f"top_p={sampling.top_p}: give a number above 0, up to 1 (off)"),
        (sampling.top_k < -1, f"top_k={sampling.top_k}: give 1 or more, or -1 or 0 (off)"),
        (not 0 <= sampling.min_p <= 1, f"min_p={sampling.min_p}: give a number from 0 (off) to 1"),
    ]
    for is_wrong, message in wrong:
        if is_wrong:
            raise UserError(message)
