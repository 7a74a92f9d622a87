"""A trainer and samplers in memory: a model is one number, which optimizer steps add gradients to."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from agentrl.chat.media.processor import Processor
from agentrl.core.errors import UserError
from agentrl.engines.engine import Generation
from agentrl.engines.scores import TokenScores
from agentrl.serve.contract import PassResult


class FakeTrainer:
    """Records calls; weights are one number, and gradients the sum of the tokens since the last step."""

    processor = Processor()

    def __init__(self, delay: float = 0.0) -> None:
        self.models, self.calls, self.delay, self.passes = {}, [], delay, {}
        self.gate, self.refuses = threading.Event(), False
        self.gate.set()

    def _model(self, name):
        if name not in self.models:
            raise UserError(f"no model {name}")
        time.sleep(self.delay)
        return self.models[name]

    def create(self, model, shape):
        if self.refuses:
            raise UserError("no room")
        if model in self.models:
            raise UserError(f"unload {model} first")
        self.calls.append(("create", model, shape))
        self.models[model] = {"weights": 0.0, "gradients": 0.0, "steps": 0}

    def begin(self, model, *given, backward):
        self.passes[model] = self.forward_backward(model, *given, backward=backward)

    def proceed(self, model):
        return next(self.passes[model])

    def forward_backward(self, model, data, loss, settings, *, backward):
        self.gate.wait()
        found = self._model(model)
        if loss not in ("cross_entropy", "importance_sampling"):
            raise UserError(f"loss {loss} is not served: use importance_sampling")
        self.calls.append(("pass", model, loss, dict(settings), backward, data))
        total = float(sum(datum.ids.sum() for datum in data))
        found["gradients"] += total * backward
        logprobs = [np.full(datum.columns["target_tokens"].shape, -0.5, np.float32) for datum in data]
        for _ in data[1:]:  # a micro-batch each
            yield None
            self.calls.append(("micro-batch", model))
            time.sleep(self.delay)
        yield PassResult(logprobs, {"loss:sum": total})

    def optim_step(self, model, adam):
        found = self._model(model)
        self.calls.append(("step", model, adam))
        found.update(weights=found["weights"] * 2 + found["gradients"], gradients=0.0, steps=found["steps"] + 1)
        return {"weights:mean": found["weights"], "steps:max": found["steps"]}

    def save(self, model, folder: Path):
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps(self._model(model)))

    def load(self, model, folder, *, optimizer):
        self.calls.append(("load", model, optimizer))
        self._model(model).update(json.loads((folder / "state.json").read_text()))

    def export(self, model, folder):
        folder.mkdir(parents=True)
        (folder / "adapter.json").write_text(json.dumps(self._model(model)["weights"]))

    def remove(self, model):
        self.models.pop(model, None)


class FakeSamplers:
    """Answers with tokens that tell the weights."""

    rank, topk, vocabulary, longest = 64, 20, 1000, 64

    def __init__(self, delay: float = 0.0) -> None:
        self.calls, self.delay = [], delay

    async def generate(self, weights, ids, sampling, *, stop=(), media=()):
        self.calls.append((weights, list(ids), sampling, stop))
        await asyncio.sleep(self.delay)
        value = int(json.loads((weights / "adapter.json").read_text())) if weights else 7
        tokens = [value % 1000] * min(3, sampling.max_new_tokens)
        return Generation(tokens, [-0.25] * len(tokens), "length", 0)

    async def score(self, weights, ids, topk, media=()):
        logprobs = np.array([np.nan] + [-0.75] * (len(ids) - 1), np.float32)
        topk_ids = np.tile(np.arange(topk, dtype=np.int32), (len(ids), 1))
        return TokenScores(logprobs, topk_ids, np.full(topk_ids.shape, -0.5, np.float32))

    @asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        yield

    async def close(self):
        pass
