"""Samples from the base and from many adapters at once.

    samplers = await open_samplers(config, models, tokenizer)  # in the event loop that uses them
    async with samplers.training():
        await asyncio.to_thread(trainer.optim_step, ...)
    await samplers.close()

Every call of the trainer is within `training()`, and none besides at the same time. `max_new_tokens` above the room
means all of it; `ignore_eos`: no token ends an answer. The same `seed` draws the same tokens, so the samples of a
prompt need different ones; asked for together, they compute it once.

Invariants:
- log-probs are those of the weights in the folder; an adapter stays loaded while a request of it runs;
- at most `ADAPTERS` are loaded: the longest unused one makes room, and who waits for room comes before later requests;
- samplers and trainer that share a module take turns: after a training call, as much time belongs to the requests.
"""

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.config.schema import Config
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import FinishReason, Generation, Sampling, limit_sampling
from agentrl.engines.hf.adapters import LoadedAdapter, adapted, same_weights
from agentrl.engines.hf.fallback import evaluating
from agentrl.engines.launching import engine_in_process
from agentrl.engines.scores import TokenScores, checked_scores
from agentrl.engines.servers import RemoteEngine
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.media import Media as BatchMedia
from agentrl.training.model.adapter import CONFIG
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.trajectory.medium import Media

ADAPTERS, RANK, TOPK = 8, 64, 20
"""Adapters that are loaded, their greatest rank on a server without `model.lora_rank`, and most tokens in place of one
that it scores."""
LOOK = 16
"""Tokens between two looks for texts that end an answer."""
POLL_SECONDS = 0.005


async def open_samplers(config: Config, models: Any, tokenizer: Any) -> "Samplers":
    """The samplers of `rollout.name`, beside the `models` that are trained (`Models`, `RayModels`): with their base,
    and on devices of their kind. Raises UserError."""
    model, kind, rank = models.base, models.kind, config.model.lora_rank or RANK
    servers = models.launch(_with_adapters(config, model, rank, kind), kind)
    if servers is None:
        engine: Any = engine_in_process(config, model.module)
        samplers: Samplers = ModuleSamplers(engine, tokenizer, model, Path(str(config.model.path)))
    else:
        engine = RemoteEngine(servers.backend, servers.replicas, None, scratch=getattr(servers, "scratch", None))
        samplers = ServerSamplers(engine, tokenizer, model)
        samplers.rank, samplers.topk = rank, TOPK
    await engine.start()
    return samplers


def _with_adapters(config: Config, model: ModelHandle, rank: int, device: str) -> Config:
    """Settings of servers that have the base, and room for adapters of all its linear layers, the output layer too."""
    layers = {name.rpartition(".")[2] for name, part in model.base.named_modules() if isinstance(part, torch.nn.Linear)}
    sglang: dict[str, Any] = {"max_loras_per_batch": ADAPTERS + 1, "lora_target_modules": sorted(layers)}
    if device != "cpu":
        sglang["lora_backend"] = "triton"  # 1.6 times as fast as SGLang's default, csgmv, with the output layer adapted
    vllm, given = {"max_loras": ADAPTERS, "max_logprobs": TOPK}, config.rollout.engine_kwargs
    kwargs = given | {"sglang": sglang | given.get("sglang", {}), "vllm": vllm | given.get("vllm", {})}
    rollout = replace(config.rollout, engine_kwargs=kwargs, free_cache_engine=False)
    return replace(config, model=replace(config.model, lora_rank=rank, lora_merge=False), rollout=rollout)


class Samplers(ABC):
    """Sample from the base and from many exported adapters at once, over an engine that loads adapters."""

    kept, rank, topk = 0, 2**16, 128
    """Finished requests whose cache the engine keeps, greatest rank, and most tokens in place of one that it scores."""

    def __init__(self, engine: Any, tokenizer: Any, model: ModelHandle) -> None:
        self.engine, self.tokenizer, self.model = engine, tokenizer, model
        self.vocabulary, self.longest = model.config.get_text_config().vocab_size, engine.max_model_len
        self.running: Counter[Path | None] = Counter()
        """Requests by their weights."""
        self._names: dict[tuple[Path, int], str] = {}
        """Loaded adapters by folder and its time, the longest unused first."""
        self._numbers, self._order, self._finished = count(), asyncio.Lock(), deque[str]()

    async def generate(
        self, weights: Path | None, ids: Sequence[int], sampling: Sampling, stop: Sequence[str] = (), media: Media = ()
    ) -> Generation:
        """One answer of the adapter in the folder `weights`; None: of the base. `stop`: texts that end it, and stay in
        it. Raises UserError, InfraError."""
        sampling = limit_sampling(sampling, len(ids), self.longest)
        async with self._loaded(weights) as name:
            key = f"{hash((name, *ids))}/{next(self._numbers)}"
            try:
                return await self._draw(ids, media, replace(sampling, adapter=name), stop, key)
            finally:
                self._release(key)

    @abstractmethod
    async def score(self, weights: Path | None, ids: Sequence[int], topk: int, media: Media = ()) -> TokenScores:
        """Log-probs of the tokens, each after those before it, at temperature 1; NaN for the first."""

    def training(self) -> AbstractAsyncContextManager[None]:
        """Within the body the samplers leave the trainer's parameters and its device alone, where they share them."""
        return nullcontext()

    async def close(self) -> None:
        """Free everything."""
        await self.engine.close()

    async def _draw(self, ids: Any, media: Media, sampling: Sampling, stop: Sequence[str], key: str) -> Generation:
        tokens, logprobs = list[int](), list[float]()
        while True:
            left = sampling.max_new_tokens - len(tokens)
            seed = sampling.seed if not tokens or sampling.seed is None else hash((sampling.seed, len(tokens))) % 2**31
            asked = replace(sampling, max_new_tokens=min(left, LOOK) if stop else left, seed=seed)
            part = await self.engine.generate([*ids, *tokens], asked, key=key, media=media)
            if part.finish_reason == "abort":
                raise InfraError("the weights of a request have changed while it ran: sample again")
            begun = len(tokens)
            tokens += part.token_ids
            logprobs += part.logprobs
            end = self._end(tokens, begun, stop) if stop else None
            if end is not None or part.finish_reason == "stop" or len(tokens) >= sampling.max_new_tokens:
                reason: FinishReason = part.finish_reason if end is None else "stop"
                return Generation(tokens[:end], logprobs[:end], reason, part.weight_version)

    def _end(self, tokens: list[int], begun: int, stop: Sequence[str]) -> int | None:
        """How many tokens there are with the first of the texts; None: no text is there."""

        def has(n: int) -> bool:
            return any(map(self.tokenizer.decode(tokens[:n]).__contains__, stop))

        return next(filter(has, range(begun + 1, len(tokens) + 1)), None) if has(len(tokens)) else None

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

    async def _name(self, weights: Path | None) -> str:
        if weights is None:
            return ""
        held = weights, os.stat(weights).st_mtime_ns  # a name that was deleted may come again
        while held not in self._names and len(self._names) >= ADAPTERS:
            if (idle := next((one for one in self._names if not self.running[one[0]]), None)) is not None:
                await self.engine.unload_adapter(self._names.pop(idle))
            else:
                await asyncio.sleep(POLL_SECONDS)
        if (name := self._names.pop(held, None)) is None:
            await self.engine.load_adapter(weights, name := f"adapter-{next(self._numbers)}")
        self._names[held] = name
        return name

    def _release(self, key: str) -> None:
        self._finished.append(key)
        if len(self._finished) > self.kept:
            self.engine.release(self._finished.popleft())


class ServerSamplers(Samplers):
    """Samplers on SGLang's or vLLM's servers, which have the base and the adapters for themselves."""

    async def score(self, weights: Path | None, ids: Sequence[int], topk: int, media: Media = ()) -> TokenScores:
        async with self._loaded(weights) as name:
            answer = await self.engine.score(ids, media, 1, topk, key=(key := f"{next(self._numbers)}"), adapter=name)
            self._release(key)
        sent, wanted = np.asarray(ids), np.arange(1, len(ids))
        return await asyncio.to_thread(checked_scores, answer, sent, wanted, k=topk, vocabulary=self.vocabulary)


class ModuleSamplers(Samplers):
    """Samplers in the trainer's process, from its own module."""

    kept = 64

    def __init__(self, engine: Any, tokenizer: Any, model: ModelHandle, base: Path) -> None:
        """`base`: the folder that the model was loaded from."""
        super().__init__(engine, tokenizer, model)
        self.base, self._module, self._rests = base, asyncio.Lock(), 0.0
        self._held = base, self._state()

    async def score(self, weights: Path | None, ids: Sequence[int], topk: int, media: Media = ()) -> TokenScores:
        async with self._loaded(weights) as name, self._module, self._paused():
            return await asyncio.to_thread(scored, self.engine.module, ids, topk, self.engine.adapters[name], media)

    @asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        async with self._order:  # later requests wait
            while (self.running and time.monotonic() < self._rests) or any(map(_is_whole, self.running)):  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
            await self._module.acquire()
        began = time.monotonic()
        try:
            async with self._paused():
                yield
                if self._state() != self._held[1]:
                    await self.engine.abort()
        finally:
            self._rests = 2 * time.monotonic() - began
            self._module.release()

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """The engine stops at the present token."""
        try:
            await self.engine.pause()
            yield
        finally:
            await self.engine.resume()

    async def _name(self, weights: Path | None) -> str:
        whole = weights if _is_whole(weights) else None
        name = "" if whole else await super()._name(weights)
        await self._check(whole or self.base)
        return name

    async def _check(self, folder: Path) -> None:
        """Raises UserError where the module's weights are not those of a folder."""
        if self._held == (folder, self._state()):
            return
        async with self._module:
            if not await asyncio.to_thread(same_weights, self.model.base, folder):
                raise UserError(f"{folder}: all weights are trained, and the last export alone can be sampled from")
            await self.engine.update_weights(next(self._numbers))
            self._held = folder, self._state()

    def _state(self) -> int:
        """Changes with the weights."""
        return sum(p._version for name, p in self.model.base.named_parameters() if ".lora_" not in name)


def scored(module: Any, ids: Sequence[int], k: int, adapter: LoadedAdapter, media: Media = ()) -> TokenScores:
    """The log-probs of the tokens, NaN for the first, and of the `k` likeliest in place of each, by one pass."""
    model = getattr(module, "get_base_model", lambda: module)()
    handle = ModelHandle(module)
    if handle.head in (adapter.parts or {}):  # its weight alone does not make the logits
        handle.log_prob_kernels = None

    def likeliest(logits: Tensor, _: Tensor) -> Tensor:
        values, found = logits.log_softmax(-1).topk(k)
        return torch.cat([values, found], 1).T  # ids as floats, which are exact up to 2**24

    mask, device = torch.ones(len(ids), dtype=torch.bool), next(model.parameters()).device
    batch = Batch.of(torch.tensor(ids), mask, [len(ids)], media=BatchMedia.of([media])).to(device)
    with torch.no_grad(), adapted(model, adapter), evaluating(model):
        logprobs, _, *figures = TokenLogprobs(handle)(batch, every_token=True, compare=likeliest)
    table = torch.stack([logprobs, *figures]).cpu().numpy().T
    table[0] = np.nan
    own, values, found = np.split(table, [1, 1 + k], 1)
    return TokenScores(own[:, 0], np.nan_to_num(found).astype(np.int32), values)


def _is_whole(weights: Path | None) -> bool:
    return weights is not None and not (weights / CONFIG).is_file()
