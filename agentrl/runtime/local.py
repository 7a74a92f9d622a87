"""The whole of a run in one process: the hf engine samples from the very parameters that the actor trains.

Invariant: engine and actor take turns; neither runs while the other does, so both may use every core.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.chat import Chat
from agentrl.config.schema import Config
from agentrl.data.row import Row
from agentrl.errors import UserError
from agentrl.interactions import load_interactions
from agentrl.plugins import load_attribute
from agentrl.rewards import Scorer, load_reward_function
from agentrl.rewards.ready_made import CODE_FUNCTION, of_code
from agentrl.rollout.engine import Engine, Sampling
from agentrl.rollout.engines.hf import HFEngine
from agentrl.rollout.limits import Limits
from agentrl.rollout.loops import AgentLoop, Environment, loop_class
from agentrl.rollout.scheduler import Scheduler
from agentrl.rollout.trajectory import Trajectory
from agentrl.runtime.runtime import OnDone
from agentrl.sandbox.sandbox import Sandbox
from agentrl.tools import load_tools
from agentrl.training import Batch, PolicyActor, device_for, load_model, load_tokenizer, save_pretrained, tune_cpu
from agentrl.usercode import UserFunction


class LocalRuntime:
    """Builds and holds policy, engine, tools and scorer for one process. Raises UserError where they do not fit."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device = device_for(config.trainer.device)
        if self.device.type == "cpu":
            tune_cpu()
        self.tokenizer = load_tokenizer(config.model)
        self.module = load_model(config.model, device=self.device, seed=config.trainer.seed)
        self.runner = asyncio.Runner()
        self._loops = cache(loop_class)  # asked for every trajectory: the YAML is read once
        self.engine: Engine = self._engine()
        self.sandbox = self._sandbox()
        self.env = self._environment()
        self.scheduler = self._scheduler()
        self.actor: PolicyActor | None = None
        self.runner.run(self.engine.start())

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

    def _engine(self) -> Engine:
        rollout = self.config.rollout
        if rollout.name != "hf":
            raise UserError(f"rollout.name={rollout.name}: this process runs hf only")
        return HFEngine(
            self.module,
            max_num_seqs=rollout.max_num_seqs,
            max_model_len=self._model_length(),
            deterministic=rollout.deterministic,
            **rollout.engine_kwargs.get("hf", {}),
        )

    def _model_length(self) -> int:
        data = self.config.data
        return self.config.rollout.max_model_len or data.max_prompt_length + data.max_response_length

    def _sandbox(self) -> Sandbox:
        sandbox_fusion = self.config.reward.sandbox_fusion
        return Sandbox(
            sandbox_fusion.url,
            max_concurrent=sandbox_fusion.max_concurrent,
            memory_limit_mb=sandbox_fusion.memory_limit_mb,
        )

    def _environment(self) -> Environment:
        multi_turn = self.config.rollout.multi_turn
        chat = Chat(
            self.tokenizer,
            format=multi_turn.format,
            inference_template=multi_turn.use_inference_chat_template,
            check=multi_turn.tokenization_sanity_check_mode,
        )
        tools = load_tools(
            multi_turn.tool_config_path if multi_turn.enable else None,
            multi_turn.function_tool_path if multi_turn.enable else None,
            max_response=multi_turn.max_tool_response_length,
            unit=multi_turn.tool_response_unit,
            side=multi_turn.tool_response_truncate_side,
            tokenizer=self.tokenizer,
            sandbox=self.sandbox,
        )
        interactions = load_interactions(multi_turn.interaction_config_path if multi_turn.enable else None)
        return Environment(
            self.engine,
            chat,
            tools,
            interactions,
            self._limits(),
            multi_turn.use_inference_chat_template,
            callback(multi_turn.completion_callback),
        )

    def _limits(self) -> Limits:
        data, multi_turn = self.config.data, self.config.rollout.multi_turn
        return Limits(
            prompt_length=data.max_prompt_length,
            response_length=data.max_response_length,
            model_length=self._model_length(),
            truncation=data.truncation,
            assistant_turns=multi_turn.max_assistant_turns,
            user_turns=multi_turn.max_user_turns,
            parallel_calls=multi_turn.max_parallel_calls,
            consecutive_errors=multi_turn.max_consecutive_errors,
        )

    def _scheduler(self) -> Scheduler:
        rollout = self.config.rollout
        return Scheduler(
            self.env,
            self._loop_for,
            self._scorer(),
            max_concurrent=rollout.max_concurrent_trajectories,
            timeout=rollout.trajectory_timeout,
            retries=rollout.infra_retries,
        )

    def _loop_for(self, row: Row) -> type[AgentLoop]:
        agent, multi_turn = self.config.rollout.agent, self.config.rollout.multi_turn
        # A row without agent_name must not quietly run without tools when multi-turn is on.
        default = agent.default_agent_loop or ("tool_agent" if multi_turn.enable else "single_turn")
        return self._loops(row.agent_name or default, agent.agent_loop_config_path)

    def _scorer(self) -> Scorer:
        reward = self.config.reward
        custom_reward_function = reward.custom_reward_function
        function = load_reward_function(
            custom_reward_function.path, custom_reward_function.name, custom_reward_function.reward_kwargs
        )
        if function is None and of_code(self.config.data):
            function = load_reward_function(None, CODE_FUNCTION, {})
        multi_turn = self.config.rollout.multi_turn
        return Scorer(
            function,
            tool_weight=reward.tool_weight,
            interaction_weight=reward.interaction_weight,
            num_workers=reward.num_workers,
            timeout=reward.timeout,
            decode=lambda ids: str(self.tokenizer.decode(ids, skip_special_tokens=True)),
            tools=multi_turn.enable and bool(multi_turn.tool_config_path or multi_turn.function_tool_path),
            interactions=multi_turn.enable and bool(multi_turn.interaction_config_path),
            sandbox=self.sandbox,
        )

    def _trained(self) -> PolicyActor:
        if self.actor is None:
            raise RuntimeError("prepare() comes before anything that trains")
        return self.actor


def callback(path: str | None) -> UserFunction | None:
    """The function behind `rollout.multi_turn.completion_callback`. Raises UserError."""
    if path is None:
        return None
    module, _, name = path.rpartition(".")
    return UserFunction(load_attribute(module, name, what="rollout.multi_turn.completion_callback"))
