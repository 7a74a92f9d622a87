"""The engine that samples from the policy's own transformers module, in this process.

Trainer and engine share the module's parameters, so `update_weights` copies nothing. Forward passes run in one worker
thread; the coroutines here only post requests to it and wait.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from agentrl.core.clocks import began
from agentrl.core.errors import InfraError, UserError
from agentrl.core.points import engine
from agentrl.engines.engine import Generation, Sampling, limit_sampling
from agentrl.engines.hf.adapters import AS_IS, LoadedAdapter, parts_of, read_adapter
from agentrl.engines.hf.core import Core
from agentrl.engines.hf.decode_check import decode_gap
from agentrl.engines.hf.fallback import FallbackRunner
from agentrl.engines.hf.options import cache_bytes, read_options
from agentrl.engines.hf.projection import Unsupported
from agentrl.engines.hf.runner import Request, Runner
from agentrl.engines.hf.slots import SlotRunner
from agentrl.engines.hf.threads import configure_torch, slow_bfloat16
from agentrl.engines.hf.worker import Worker
from agentrl.trajectory.medium import Medium

log = logging.getLogger(__name__)


@engine("hf")
class HFEngine:
    """`agentrl.engines.engine.Engine` over a transformers module on CPU or CUDA.

    Llama, Mistral, Qwen2 and Qwen3, with or without LoRA adapters, run with continuous batching and a KV cache that
    lives between the turns of a trajectory; other architectures run on `module.generate`.

    Besides the contract:
    - a prompt that leaves no room within `max_model_len` raises UserError, since a retry cannot help;
    - `release` ends a running request of its key like `abort`;
    - after switching adapters on or off, call `update_weights`: it is a change of weights.
    """

    def __init__(
        self, module: Any, *, max_num_seqs: int, max_model_len: int, deterministic: bool = False, **engine_kwargs: Any
    ) -> None:
        """`engine_kwargs` are those of `options.Options`. Raises UserError for one that does not exist."""
        if max_num_seqs < 1:
            raise UserError(f"rollout.max_num_seqs={max_num_seqs}: give 1 or more")
        self.module = module
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.deterministic = deterministic
        self.options = read_options(engine_kwargs)
        self.adapters: dict[str | None, LoadedAdapter] = {None: AS_IS, "": LoadedAdapter({})}
        self._worker: Worker | None = None
        self._outbox: list[Callable[[], None]] = []

    async def start(self) -> None:
        if self._worker is not None:
            return
        configure_torch(threads=self.options.threads, matmul_precision=self.options.matmul_precision)
        weight = next(self.module.parameters())
        if slow_bfloat16(weight.device, weight.dtype):
            log.warning("bfloat16 is slow on this CPU, which has no AVX-512: set model.dtype=float32")
        self._worker = Worker(self._runner(), deterministic=self.deterministic)
        try:
            await self._ask(lambda worker: self._check(worker.core))
        except Exception:
            await self.close()
            raise

    async def close(self) -> None:
        if self._worker is None:
            return
        self._flush()
        worker, self._worker = self._worker, None
        worker.post(worker.stop)
        await asyncio.to_thread(worker.thread.join)

    def open(self, key: str) -> None:
        worker = self._running()
        self._post(lambda: worker.core.open(key))

    def release(self, key: str) -> None:
        worker = self._running()
        self._post(lambda: worker.core.release(key))

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, key: str, media: Sequence[Medium] = ()
    ) -> Generation:
        """Continue `token_ids`. Raises UserError for a prompt or a setting that cannot work, InfraError when the
        forward pass fails."""
        worker = self._running()
        request = self._request(token_ids, sampling, key, tuple(media))
        request.future = asyncio.get_running_loop().create_future()
        self._post(lambda: worker.submit(request))
        try:
            generation = await request.future
        except asyncio.CancelledError:
            self._post(lambda: worker.core.end([request]))
            raise
        began(request.begun)
        return generation

    async def load_adapter(self, folder: Path, name: str) -> None:
        """Sample from the adapter in a folder where `Sampling.adapter` is `name`. Raises UserError."""
        self.adapters[name] = await asyncio.to_thread(read_adapter, folder, self.module)

    def set_adapter(self, name: str, tensors: Mapping[str, Tensor], scale: float) -> None:
        """Sample from an adapter by its tensors under peft's names where `Sampling.adapter` is `name`, also in requests
        that run; `update_weights` follows."""
        base = getattr(self.module, "get_base_model", lambda: self.module)()
        self.adapters.setdefault(name, LoadedAdapter({})).parts = parts_of(base, tensors, scale)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; its requests go on."""
        del self.adapters[name]

    async def abort(self) -> None:
        await self._ask(lambda worker: worker.core.abort())

    async def pause(self) -> None:
        await self._ask(lambda worker: worker.core.pause())

    async def resume(self) -> None:
        await self._ask(lambda worker: worker.core.resume())

    async def update_weights(self, version: int) -> None:
        await self._ask(lambda worker: worker.core.update_weights(version))

    async def sleep(self) -> None:
        """Free the KV cache; after `wake` the requests compute it again and continue."""
        await self._ask(lambda worker: worker.core.sleep())

    async def wake(self) -> None:
        await self._ask(lambda worker: worker.core.wake())

    async def health(self) -> dict[str, float]:
        return await self._ask(lambda worker: worker.core.health())

    def _running(self) -> Worker:
        if self._worker is None:
            raise InfraError("the hf engine is not running: start() comes first, and nothing after close()")
        return self._worker

    def _runner(self) -> Runner:
        options, device = self.options, next(self.module.parameters()).device
        tokens = options.max_num_batched_tokens or (8192 if device.type == "cuda" else 1024)
        sizes = {"max_running": self.max_num_seqs, "max_len": self.max_model_len, "max_tokens": tokens}
        if not options.fallback:
            try:
                return SlotRunner(self.module, **sizes, budget_bytes=cache_bytes(device, options.kv_cache_gb))
            except Unsupported as reason:
                log.warning("hf engine: %s: using transformers' own generation, which is slower", reason)
        return FallbackRunner(self.module, max_running=self.max_num_seqs)

    def _check(self, core: Core) -> None:
        """Take another runner where this one draws what the model does not compute. Raises UserError without one."""
        gap = self._gap(core.runner)
        slots, one = isinstance(core.runner, SlotRunner), self.max_num_seqs == 1
        others = [(self.max_num_seqs, True)] * slots + [(1, True)] * (not one) + [(1, False)]
        for sequences, cached in others:
            if gap:
                core.runner = FallbackRunner(self.module, max_running=sequences, cached=cached)
                how = f"{sequences} at a time" if cached else "each token computes its whole sequence, which is slow"
                log.warning("hf engine: drawn log-probs are off by %.2g nats; now %s", gap, how)
                gap = self._gap(core.runner)
        if gap:
            raise UserError(
                f"rollout.name=hf: a {self.module.config.model_type} model's own forward pass of a sequence is off by "
                f"{gap:.2g} nats a token where it is longer; set rollout.name to sglang or vllm"
            )

    def _gap(self, runner: Runner) -> float:
        try:
            gap = decode_gap(runner, self.module, self.max_model_len, windows=not isinstance(runner, SlotRunner))
        except Exception as error:  # the model's own code
            reason = str(error).strip().partition("\n")[0]
            raise UserError(f"rollout.name=hf: the model cannot generate: {type(error).__name__}: {reason}") from error
        runner.computed = 0
        return gap

    def _request(self, token_ids: Sequence[int], sampling: Sampling, key: str, media: tuple[Medium, ...]) -> Request:
        sampling = limit_sampling(sampling, len(token_ids), self.max_model_len)
        stops = () if sampling.ignore_eos else (*sampling.stop_token_ids, *self.options.eos_token_ids)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        return Request(key, list(token_ids), sampling, seed, frozenset(stops), self.adapters[sampling.adapter], media)

    async def _ask(self, call: Callable[[Worker], Any]) -> Any:
        worker = self._running()
        self._flush()
        return await worker.ask(lambda: call(worker))

    def _post(self, call: Callable[[], None]) -> None:
        """Post a call to the worker together with all others of this turn of the event loop.

        So the requests of tasks that wake together share a batch, and those of a group share their prompt.
        """
        self._outbox.append(call)
        if len(self._outbox) > 1:
            return
        try:
            asyncio.get_running_loop().call_soon(self._flush)
        except RuntimeError:  # open() or release() outside of an event loop
            self._flush()

    def _flush(self) -> None:
        calls, self._outbox = self._outbox, []
        if self._worker is not None:
            self._worker.post(*calls)
