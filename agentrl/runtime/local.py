"""The whole of a run in one process, but for the engine's servers where it has any.

Invariant: engine and actor take turns; neither runs while the other does, so both may use every core and the GPU.
The hf engine samples from the very parameters that the actor trains; the others get them by `sync`, before anything
is sampled.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from agentrl.config.schema import Config
from agentrl.data.row import Row
from agentrl.rollout.engine import Engine, Sampling
from agentrl.rollout.loops import AgentLoop, loop_class
from agentrl.rollout.scheduler import Scheduler
from agentrl.rollout.trajectory import Trajectory
from agentrl.runtime.engines import Servers, hf_engine, launch
from agentrl.runtime.environment import environment, sandbox_for, scorer
from agentrl.runtime.runtime import OnDone
from agentrl.tracking import Waiting
from agentrl.training import Batch, PolicyActor, device_for, load_model, load_tokenizer, save_pretrained, tune_cpu


class LocalRuntime:
    """Builds and holds policy, engine, tools and scorer for one process. Raises UserError where they do not fit."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device = device_for(config.trainer.device)
        if self.device.type == "cpu":
            tune_cpu()
        servers = launch(config, self.device)  # first, for a server starts while the model is loaded here
        self.naps = servers is not None and servers.sleeps
        self.tokenizer = load_tokenizer(config.model)
        self.module = load_model(config.model, device=self.device, seed=config.trainer.seed)
        self.runner = asyncio.Runner()
        self._loops = cache(loop_class)  # asked for every trajectory: the YAML is read once
        self.engine = self._start_engine(servers)
        self.sandbox = sandbox_for(config)
        self.env = environment(config, self.tokenizer, self.engine, self.sandbox)
        self.scheduler = self._scheduler()
        self.actor: PolicyActor | None = None

    def prepare(self, total_steps: int) -> None:
        algorithm, data = self.config.algorithm, self.config.data
        self.actor = PolicyActor(
            self.module,
            actor=self.config.actor,
            temperature=self.config.rollout.temperature,
            device=self.device,
            total_steps=total_steps,
            reference=algorithm.use_kl_in_reward,
            max_response_length=data.max_response_length,
            rollout_correction=algorithm.rollout_correction,
        )

    def rollout(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        rollout = self.config.rollout
        sampling = replace(
            self._sampling(),
            temperature=rollout.temperature if rollout.do_sample else 0.0,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
        )
        return self._run(rows, n=rollout.n, sampling=sampling, tag=str(step), on_done=on_done)

    def validate(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        val_kwargs = self.config.rollout.val_kwargs
        sampling = replace(
            self._sampling(),
            temperature=val_kwargs.temperature if val_kwargs.do_sample else 0.0,
            top_p=val_kwargs.top_p,
            top_k=val_kwargs.top_k,
        )
        return self._run(rows, n=val_kwargs.n, sampling=sampling, tag=f"val-{step}", on_done=on_done)

    def annotate(self, batch: Batch) -> Batch:
        if self.naps:
            self.runner.run(self.engine.sleep())
        actor, penalised = self._trained(), self.config.algorithm.use_kl_in_reward
        batch = batch.to(self.device)
        if penalised or not actor.single_step(batch):
            batch.old_logprobs = actor.logprobs(batch)[0]
        if penalised or self.config.actor.use_kl_loss:
            batch.ref_logprobs = actor.ref_logprobs(batch)
        return batch

    def update(self, batch: Batch) -> dict[str, float]:
        return self._trained().update(batch)

    def sync(self, version: int) -> None:
        if self.naps:
            torch.cuda.empty_cache()  # what the update took, the engine's cache takes now
        self.runner.run(self.engine.update_weights(version))

    def save(self, folder: Path) -> None:
        save_pretrained(self.module, self.tokenizer, folder)

    def state_dict(self) -> dict[str, Any]:
        return self._trained().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._trained().load_state_dict(state)

    def prompt_length(self, row: Row) -> int:
        """Tokens of a row's first prompt, tools included."""
        schemas = self.env.tools.schemas(row.tool_selection) if self._loop_for(row).uses_tools else []
        return len(self.env.chat.prompt(row.prompt, schemas))

    def decode(self, ids: Sequence[int]) -> str:
        return self.env.chat.decode(ids)

    def close(self) -> None:
        self.runner.run(self.engine.close())
        self.runner.run(self.env.tools.close())
        self.runner.run(self.env.interactions.close())
        self.runner.run(self.sandbox.close())
        self.runner.close()

    def _run(self, rows: Sequence[Row], *, n: int, sampling: Sampling, tag: str, on_done: OnDone) -> list[Trajectory]:
        return self.runner.run(self.scheduler.run(rows, n=n, sampling=sampling, tag=tag, on_done=on_done))

    def _sampling(self) -> Sampling:
        rollout = self.config.rollout
        return Sampling(
            max_new_tokens=self.config.data.max_response_length, seed=rollout.seed, ignore_eos=rollout.ignore_eos
        )

    def _start_engine(self, servers: Servers | None) -> Engine:
        if servers is None:
            engine = hf_engine(self.config, self.module)
            self.runner.run(engine.start())
            return engine
        with Waiting(f"{servers.dialect.name} starts") as waiting:
            remote = servers.engine(self.module, waiting)
            self.runner.run(remote.start())
        return remote

    def _scheduler(self) -> Scheduler:
        rollout = self.config.rollout
        return Scheduler(
            self.env,
            self._loop_for,
            scorer(self.config, self.tokenizer, self.sandbox),
            max_concurrent=rollout.max_concurrent_trajectories,
            timeout=rollout.trajectory_timeout,
            retries=rollout.infra_retries,
        )

    def _loop_for(self, row: Row) -> type[AgentLoop]:
        agent, multi_turn = self.config.rollout.agent, self.config.rollout.multi_turn
        # A row without agent_name must not quietly run without tools when multi-turn is on.
        default = agent.default_agent_loop or ("tool_agent" if multi_turn.enable else "single_turn")
        return self._loops(row.agent_name or default, agent.agent_loop_config_path)

    def _trained(self) -> PolicyActor:
        if self.actor is None:
            raise RuntimeError("prepare() comes before anything that trains")
        return self.actor
