"""Samples from the base and from many adapters at once.

    samplers = await open_samplers(config, model, tokenizer)  # within the event loop that uses them
    async with samplers.training():
        await asyncio.to_thread(trainer.optim_step, ...)
    await samplers.close()

Invariants:
- the log-probs are those of the weights in the folder; an adapter stays loaded while a request of it runs;
- at most `ADAPTERS` are loaded: the longest unused one makes room, and who waits for room comes before later requests;
- samplers and trainer that share a module take turns: after a training call as long as it took belongs to requests,
  if there are any.

Settings of a request: `max_new_tokens` above the room means all of it, `ignore_eos` no stop but the texts of `stop`.
The same `seed` draws the same tokens, so samples of one prompt need different ones.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from agentrl.chat.template import Template
from agentrl.config.schema import Config
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Generation, Sampling, limit_sampling
from agentrl.engines.launching import engine_in_process
from agentrl.engines.scores import TokenScores
from agentrl.gateway.halting import Halting
from agentrl.gateway.ledger_branch import SampledTokens
from agentrl.gateway.reply import cut_at_stop
from agentrl.serve.contract import Samplers
from agentrl.training.model.adapter import CONFIG
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.towers import as_saved

ADAPTERS = 8
KEPT = 64
"""Finished requests whose keys and values stay in the cache of an engine in this process."""
POLL_SECONDS = 0.005


async def open_samplers(config: Config, model: ModelHandle, tokenizer: Any) -> Samplers:
    """The samplers of `rollout.name` beside the policy's loaded model. Raises UserError."""
    engine = engine_in_process(config, model.module)
    await engine.start()
    return ModuleSamplers(engine, tokenizer, model, Path(str(config.model.path)))


class EngineSamplers(Samplers):
    """Samplers over an engine."""

    def __init__(self, engine: Any, tokenizer: Any) -> None:
        """`engine`: `agentrl.engines.engine.Engine` with `load_adapter` and `unload_adapter`."""
        self.engine, self.template = engine, Template(tokenizer)
        self.halting = Halting(self.template)
        self.running: Counter[Path | None] = Counter()
        """Requests by their weights."""
        self._names: dict[Path, str] = {}
        """Loaded adapters, the longest unused first."""
        self._numbers, self._order, self._ended = count(), asyncio.Lock(), asyncio.Event()

    async def generate(
        self, weights: Path | None, ids: Sequence[int], sampling: Sampling, *, stop: Sequence[str] = (), media: Any = ()
    ) -> Generation:
        sampling = limit_sampling(sampling, len(ids), self.engine.max_model_len)
        await self.halting.at(tuple(stop))
        async with self._loaded(weights) as name:
            key = f"{hash((name, *ids))}/{next(self._numbers)}"
            try:
                return await self._draw(ids, replace(sampling, adapter=name), tuple(stop), key, media)
            finally:
                self._release(key)

    def training(self) -> Any:
        return nullcontext()

    async def close(self) -> None:
        await self.engine.close()

    async def _draw(
        self, ids: Sequence[int], sampling: Sampling, stop: tuple[str, ...], key: str, media: Any
    ) -> Generation:
        """An answer up to the token that completes a stop text; the engine halts wherever one may."""
        halts, drawn, text = await self.halting.at(stop), SampledTokens(), ""
        ends = () if sampling.ignore_eos else sampling.stop_token_ids
        wishes = replace(
            sampling,
            stop_token_ids=(*ends, *sorted(halts.ids.difference(ends))),
            ignore_eos=sampling.ignore_eos and not halts.ids,
        )
        while (left := sampling.max_new_tokens - len(drawn.ids)) > 0:
            seed = None if sampling.seed is None else sampling.seed + len(drawn.ids)
            asked = replace(wishes, max_new_tokens=1 if halts.single(text) else left, seed=seed)
            part = await self.engine.generate([*ids, *drawn.ids], asked, key=key, media=media)
            if part.finish_reason == "abort":
                raise InfraError("the weights of a request have changed while it ran: sample again")
            drawn.ids += part.token_ids
            drawn.logprobs += part.logprobs
            drawn.versions += part.versions or [part.weight_version] * len(part.token_ids)
            text = self.template.decode(drawn.ids) if stop else ""
            ended = part.finish_reason == "stop" and (not stop or drawn.ids[-1] in ends)
            if ended or cut_at_stop(self.template, drawn, text, stop):
                return Generation.of(drawn.ids, drawn.logprobs, "stop", drawn.versions, (), present=0)
        return Generation.of(drawn.ids, drawn.logprobs, "length", drawn.versions, (), present=0)

    @asynccontextmanager
    async def _loaded(self, weights: Path | None) -> AsyncIterator[str]:
        """The engine's name of weights, which stay loaded within the body."""
        async with self._order:
            name = await self._name(weights)
            self.running[weights] += 1
        try:
            yield name
        finally:
            self.running -= Counter([weights])  # drops entries of 0
            self._ended.set()

    async def _name(self, weights: Path | None) -> str:
        if weights is None:
            return ""
        while weights not in self._names and len(self._names) >= ADAPTERS:
            if (idle := next((folder for folder in self._names if not self.running[folder]), None)) is not None:
                await self.engine.unload_adapter(self._names.pop(idle))
            else:
                self._ended.clear()
                await self._ended.wait()
        if (name := self._names.pop(weights, None)) is None:
            await self.engine.load_adapter(weights, name := f"adapter-{next(self._numbers)}")
        self._names[weights] = name
        return name

    def _release(self, key: str) -> None:
        self.engine.release(key)


class ModuleSamplers(EngineSamplers):
    """Samplers in the trainer's process, from its own module."""

    def __init__(self, engine: Any, tokenizer: Any, model: ModelHandle, base: Path) -> None:
        """`base`: the folder that the model was loaded from."""
        super().__init__(engine, tokenizer)
        self.model, self.base = model, base
        self._module, self._rests, self._finished = asyncio.Lock(), 0.0, deque[str]()
        self._held = base, self._state()

    async def score(self, weights: Path | None, ids: Sequence[int], topk: int) -> TokenScores:
        async with self._loaded(weights) as name, self._module:
            scores: TokenScores = await self.engine.score(ids, topk, name)
            return scores

    @asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        await self._module.acquire()
        while (self.running and time.monotonic() < self._rests) or any(map(_is_whole, self.running)):
            self._module.release()
            await asyncio.sleep(POLL_SECONDS)
            await self._module.acquire()
        began = time.monotonic()
        try:
            await self.engine.pause()
            yield
        finally:
            self._rests = 2 * time.monotonic() - began
            if self._state() != self._held[1]:
                await self.engine.abort()
            await self.engine.resume()
            self._module.release()

    @asynccontextmanager
    async def _loaded(self, weights: Path | None) -> AsyncIterator[str]:
        async with super()._loaded(weights) as name:
            await self._check(weights if weights is not None and _is_whole(weights) else self.base)
            yield name

    async def _name(self, weights: Path | None) -> str:
        return "" if _is_whole(weights) else await super()._name(weights)

    async def _check(self, folder: Path) -> None:
        """Raises UserError where the module's weights are not those of a folder."""
        if self._held == (folder, self._state()):
            return
        async with self._module:
            if not await asyncio.to_thread(_same, self.model.base, folder):
                raise UserError(
                    f"{folder}: all weights are trained, and the trainer has others by now: rollout.name=hf samples "
                    "from those exported last"
                )
            await self.engine.update_weights(next(self._numbers))
            self._held = folder, self._state()

    def _state(self) -> int:
        """Changes with the weights."""
        return sum(p._version for name, p in self.model.base.named_parameters() if ".lora_" not in name)

    def _release(self, key: str) -> None:
        self._finished.append(key)
        if len(self._finished) > KEPT:
            self.engine.release(self._finished.popleft())


def _is_whole(weights: Path | None) -> bool:
    return weights is not None and not (weights / CONFIG).is_file()


def _same(model: Any, folder: Path) -> bool:
    """Whether a model has the weights of a folder."""
    saved = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    own = {name.replace(".base_layer", ""): p for name, p in model.named_parameters() if ".lora_" not in name}
    pairs = [(p.detach().cpu(), saved.get(name)) for name, p in as_saved(model, own).items()]
    return all(theirs is not None and torch.equal(mine, theirs.to(mine.dtype)) for mine, theirs in pairs)
