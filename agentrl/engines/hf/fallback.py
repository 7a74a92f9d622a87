"""Runs architectures without a forward pass of this engine, by transformers' `generate`.

Batches are static: waiting requests are padded together, and new ones wait until the batch ends. A logits processor
draws each token with the engine's own sampler, so that seeds, filters and log-probs mean the same, and leaves
`generate` only that token. When weights or requests change, the batch stops, and its unfinished requests continue in
the next one from the tokens they have.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

from agentrl.chat.media.inputs import arguments
from agentrl.core.errors import UserError
from agentrl.core.replaced import replaced
from agentrl.engines.hf.adapters import LoadedAdapter, adapted
from agentrl.engines.hf.runner import Emit, Request, draw
from agentrl.training.model.routing import routing_in


class Interrupted(Exception):
    """Leaves `generate` between two tokens."""


class FallbackRunner:
    """Runs any module with `generate`, up to `max_running` requests at once.

    The model must respect the attention mask: shorter prompts are padded on the left. Raises UserError for peft's
    learned prompts, which are outside of the model that generates.
    """

    def __init__(self, module: Any, *, max_running: int, cached: bool = True) -> None:
        """`cached`: keep keys, values and states between tokens."""
        if any(config.is_prompt_learning for config in getattr(module, "peft_config", {}).values()):
            raise UserError("the hf engine cannot run learned prompts: use LoRA, or another engine")
        # peft's wrapper would write its own generation settings into the model; the adapters are in its layers.
        self.model = module.get_base_model() if hasattr(module, "get_base_model") else module
        self.max_running, self.cached = max_running, cached
        self.computed = 0
        self.batch: list[Request] = []
        self.routing = routing_in(self.model)

    def step(self, requests: Sequence[Request], emit: Emit) -> None:
        self.batch = list(requests[: self.max_running])
        for request in self.batch:
            request.begin()
            self.computed += len(request.tokens) - 1  # the last one counts when its successor is drawn
        recording = nullcontext() if self.routing is None else self.routing.recording(self.model)
        neutral = _neutral(self.model, self.cached, requests[0].adapter)
        with torch.no_grad(), neutral, recording, suppress(Interrupted):
            self._generate(emit)

    def in_flight(self) -> Sequence[Request]:
        return self.batch

    def leave(self, request: Request) -> None:
        """Nothing to free; the request's row is padded until the batch ends."""

    def forget(self, key: str) -> None:
        """Nothing is kept between requests."""

    def clear(self) -> None:
        """Nothing is kept between batches."""

    def reload(self) -> None:
        """`generate` reads the weights itself."""

    def stats(self) -> dict[str, float]:
        return {"computed_tokens": self.computed}

    def _generate(self, emit: Emit) -> None:
        from transformers import LogitsProcessorList, StoppingCriteriaList

        batch = self.batch
        device = next(self.model.parameters()).device
        width = max(len(request.tokens) for request in batch)
        padding = [width - len(request.tokens) for request in batch]
        ids = [[0] * pad + request.tokens for pad, request in zip(padding, batch, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        media = [medium for request in batch for medium in request.media]
        self.model.generate(
            input_ids=torch.tensor(ids, device=device),
            **arguments(self.model, ids, media, device),
            attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=max(request.sampling.max_new_tokens - request.drawn for request in batch),
            logits_processor=LogitsProcessorList([lambda _, scores: self._drawn(scores, emit)]),
            stopping_criteria=StoppingCriteriaList(
                [lambda *_, **__: torch.tensor([r.done for r in batch], device=device)]
            ),
        )

    def _drawn(self, scores: Tensor, emit: Emit) -> Tensor:
        """Draw a token for every unfinished row, and set all other logits to -inf."""
        alive = [i for i, request in enumerate(self.batch) if not request.done]
        requests = [self.batch[i] for i in alive]
        if self.routing is not None:
            met = self.routing.seen.view(len(self.batch), -1, *self.routing.seen.shape[1:]).cpu().numpy()
            for i, request in zip(alive, requests, strict=True):
                request.met(met[i])
        self.computed += len(requests)
        tokens, logprobs = draw(scores[alive], requests)
        if not emit(requests, tokens, logprobs):
            raise Interrupted
        chosen = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        chosen[alive] = torch.tensor(tokens, device=scores.device)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)


@contextmanager
def _neutral(model: Any, cached: bool, adapter: LoadedAdapter) -> Iterator[None]:
    """Remove the model's own generation defaults (penalties, suppressed tokens, end tokens) in this context, and
    have it compute with `adapter`.

    `generate` uses them for every argument that is not given, so an argument cannot switch them off.
    """
    from transformers import GenerationConfig

    neutral = GenerationConfig(do_sample=False, num_beams=1, use_cache=cached, pad_token_id=0)
    with evaluating(model), adapted(model, adapter), replaced([(vars(model), "generation_config", neutral)]):
        yield


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in eval mode, in this context."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
