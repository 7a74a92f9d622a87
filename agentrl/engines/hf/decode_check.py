"""Checks that a runner draws tokens with the log-probs of the model's own forward pass.

Some architectures compute otherwise with a cache, or with padding on the left; what they draw cannot be trained on.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from agentrl.engines.engine import Sampling
from agentrl.engines.hf.fallback import evaluating
from agentrl.engines.hf.runner import Request, Runner
from agentrl.training.model.packing_probe import WINDOW, short_windows

PROMPTS, DRAWN = (24, 15), 8
"""Tokens, more than a window has; the shorter prompt is padded."""
MAX_GAP = {torch.float32: 3e-3}
MAX_GAP_IN_HALF = 0.2
"""Nats a token, mean; rounding makes 1e-6 in float32, and up to 0.04 in half precision."""


def decode_gap(runner: Runner, module: Any, max_len: int, *, windows: bool) -> float:
    """Mean difference of the log-probs of drawn tokens from the model's own, in nats; 0 where rounding explains it.

    `windows`: the runner takes attention windows from the model, and they are shortened. The runner is empty then.
    """
    model = module.get_base_model() if hasattr(module, "get_base_model") else module
    with short_windows(model, WINDOW) if windows else nullcontext(), evaluating(model), torch.no_grad():
        requests = _drawn(runner, model.config.get_text_config().vocab_size, max_len)
        gaps = [_gap(model, request) for request in requests if request.error is None]
    gap = float(torch.cat(gaps).mean()) if gaps else 0.0
    return 0.0 if gap <= MAX_GAP.get(model.dtype, MAX_GAP_IN_HALF) else gap


def _drawn(runner: Runner, vocabulary: int, max_len: int) -> list[Request]:
    """Finished requests; none where sequences are too short to have them."""
    draw, requests = torch.Generator().manual_seed(0), []
    for number, length in enumerate(min(length, max_len - DRAWN) for length in PROMPTS):
        ids = torch.randint(vocabulary // 4, vocabulary // 2 + 1, (max(length, 0),), generator=draw).tolist()
        requests.append(Request(f"check-{number}", ids, Sampling(DRAWN), number, frozenset()))
    if min(len(request.tokens) for request in requests) < 2:
        return []

    def emit(drawing: Sequence[Request], tokens: Sequence[int], logprobs: Sequence[float]) -> bool:
        for request, token, logprob in zip(drawing, tokens, logprobs, strict=True):
            request.append(token, logprob, 0)
            if request.done:
                runner.leave(request)
        return True

    while waiting := [request for request in requests if not request.done]:
        runner.step(waiting, emit)
    runner.clear()
    return requests


def _gap(model: Any, request: Request) -> torch.Tensor:
    """Difference of each drawn token's log-prob, f32 [drawn]."""
    ids = torch.tensor([request.tokens], device=next(model.parameters()).device)
    logprobs = model(input_ids=ids, use_cache=False).logits[0, request.prompt_length - 1 : -1].float().log_softmax(-1)
    own = logprobs.gather(-1, ids[0, request.prompt_length :, None])[:, 0].cpu()
    return (own - torch.tensor(request.logprobs)).abs()
