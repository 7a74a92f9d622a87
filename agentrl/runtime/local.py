"""Runs everything in one process, except the servers of an SGLang or vLLM engine.

Invariant: engine and learner take turns; neither runs while the other does, so both may use every core and the GPU.
With `trainer.max_staleness` > 0, a server that keeps its memory continues while the policy trains. The hf engine
samples from the parameters that the learner trains; servers get them by `publish_weights` before anything is sampled.
"""

from contextlib import ExitStack
from typing import Any

import torch

from agentrl.config.schema import Config
from agentrl.engines.engine import Engine
from agentrl.engines.gpus import device_kind
from agentrl.engines.launching import Servers, engine_in_process
from agentrl.engines.starting import Start, start_servers
from agentrl.engines.teachers import launcher_here
from agentrl.rollout.user_objects import NO_OBJECTS, UserObjects
from agentrl.runtime.runtime import Runtime
from agentrl.training.learner import Learner

SPARE = 2 << 30
"""Bytes that stay free while a server is awake: for weights on their way, and for what it allocates later."""


class LocalRuntime(Runtime):
    """Builds learner and engine. Raises UserError if they do not fit."""

    learner: Learner

    def __init__(self, config: Config, objects: UserObjects = NO_OBJECTS, start: Start | None = None) -> None:
        """`start`: the servers that are starting already; None: they are launched now."""
        start = start or start_servers(config)  # first: a server starts while all else is made ready
        super().__init__(start.times)
        self._freed: int | None = None
        """Bytes that a server frees on the GPU when it sleeps, and takes when it wakes."""
        with ExitStack() as undo:
            undo.callback(self.close)
            servers = start.take()
            self.start_times.imported()
            self.sleeps = servers is not None and servers.sleeps
            self.apart = servers is not None and not servers.sleeps
            if servers is not None:
                undo.callback(lambda: self.runner.run(servers.close()))
            kind = device_kind(config.trainer.device)
            teachers = self._open_teachers(config, kind, launcher_here(config, kind))
            with self.start_times.phase("model"):
                self.learner = Learner(config, kernels=start.kernels)
            self.tokenizer, self.device = self.learner.tokenizer, self.learner.device
            engine = self._engine(config, servers)
            undo.callback(lambda: self.runner.run(engine.close()))
            self.rollouts = self._open_rollouts(config, engine, objects=objects, teachers=teachers)
            undo.pop_all()

    def publish_weights(self, version: int) -> None:
        engine: Any = self.rollouts.engine
        served = self.sleeps or self.apart or not self.learner.config.model.policies
        for adapter in () if served else self.learner.adapters():
            engine.set_adapter(*adapter)
        super().publish_weights(version)

    def _halt_engine(self) -> None:
        """Before the policy computes: the engine sleeps, or stops at the present token."""
        if self.sleeps:
            before = _free()
            super()._halt_engine()
            self._freed = max(_free() - before, 0)
        elif self.async_sampling is not None:
            self.async_sampling.pause()

    def _free_memory(self) -> None:
        # To give 100 GB back, and to take them again, costs tenths of a second.
        if self._freed is None or _free() < self._freed + SPARE:
            torch.cuda.empty_cache()

    def _engine(self, config: Config, servers: Servers | None) -> Engine:
        """The engine, ready to sample; or one over servers that are still starting."""
        if servers is None:
            engine = engine_in_process(config, self.learner.model.module)
            self.runner.run(engine.start())
            return engine
        remote = servers.engine(self.learner, self.start_times)
        self._starting = remote, servers.launched
        return remote


def _free() -> int:
    """Free bytes of the GPU."""
    return torch.cuda.mem_get_info()[0]
