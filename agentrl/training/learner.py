"""The trained models of one process: the policy, its reference and its critic.

Invariant: every rank calls every method in the same order, with its share of a batch, and gets the columns of its share
and the metrics of the whole. So one process, whose share is all, and many run the same program.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import copy
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.config.derived import full_kl_in, has_critic
from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl.training import Batch, PolicyActor, device_for, load_processor, load_tokenizer, pack_tokens, tune_cpu
from agentrl.training.batches.outline import BatchOutline, BatchPlan, prompts_of
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.saving import MODEL_ALONE, RESUMABLE, Saver, check_resumable, chosen
from agentrl.training.model.export import gather_adapter, write_model
from agentrl.training.model.head.logprobs import score_tokens
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.perf.compiled_block import start_workers
from agentrl.training.perf.compiling import uncompiled
from agentrl.training.perf.meter import Meter
from agentrl.training.perf.profiling import Profiling
from agentrl.training.perf.slow_rank import SlowRank, product_seconds
from agentrl.training.roles.frozen import Reference
from agentrl.training.roles.making import Roles
from agentrl.training.roles.teachers import RankTeachers
from agentrl.training.update.critic import ValueCritic
from agentrl.training.update.distillation import Distiller
from agentrl.training.update.passes import description, fit_passes
from agentrl.training.update.trainable import Trainable
from agentrl.training.update.warm_up import warm_up
from agentrl.trajectory.plain import restored_groups, saved_groups
from agentrl.trajectory.trajectory import Trajectory

log = logging.getLogger(__name__)


class Learner:
    """Loads the policy and trains it. Raises UserError where model and settings do not fit."""

    actor: PolicyActor
    """Made by `prepare`: of the first policy."""
    policies: dict[str, PolicyActor]
    """The actors of all policies by their names, the first one last: its adapter stays in the model."""

    def __init__(self, config: Config, ranks: Ranks | None = None) -> None:
        self.config = config
        self.ranks = ranks or Ranks()
        self.device = device_for(config.trainer.device)
        self.roles = Roles(config, self.device, self.ranks)
        if self.device.type == "cpu":
            tune_cpu()
        elif self.roles.compiles():
            start_workers()
        self.tokenizer = load_tokenizer(config.model)
        self.processor = load_processor(config.model, self.tokenizer).processor or self.tokenizer
        self.model = self.roles.policy()
        self.saver = Saver(config.trainer, self.ranks, background=config.actor.checkpoint.async_save)
        trainer = config.trainer
        self.meter, self.slow_rank = Meter(self.device, self._flops, self.ranks), SlowRank(self.ranks)
        folder = Path(trainer.default_local_dir) / "profiles"
        self.profiling = Profiling(config.actor.profiler, trainer.profile_steps, folder, self.ranks.rank)
        self.reference: Reference | None = None
        self.distiller: Distiller | None = None
        self.critic: ValueCritic | None = None
        self._placing = RLock()
        self._fitted, self._described = 0, ""
        """The last step whose passes were chosen, and the line about them."""

    def prepare(self, total_steps: int) -> bool:
        """Create actor, reference and critic for a run of `total_steps` steps. Returns whether passes compute equal
        prompts once, so that a rank should have all samples of a prompt."""
        if self.config.algorithm.use_kl_in_reward or self.config.actor.use_kl_loss:
            self.reference = self.roles.reference(self.model)
        if has_critic(self.config):
            self.critic = self.roles.critic(total_steps)
        self.distiller = self.roles.distiller(self.model)
        names, roles = self.config.model.policies, (self.reference, self.distiller, total_steps)
        self.policies = {}
        for name in reversed(names or [""]):
            own = [(key, p) for key, p in self.model.module.named_parameters() if names and p.requires_grad]
            self.model.place({key: nn.Parameter(p.detach().clone()) for key, p in own})
            self.policies[name] = self.roles.actor(copy(self.model) if name in names[1:] else self.model, *roles)
        self.actor = self.policies[name]
        return self.actor.micro_batching.shares

    def placed(self) -> Iterator[tuple[str, PolicyActor]]:
        """Each policy, whose adapter is in the model then; a thread waits until another one has gone through them."""
        with self._placing if self.config.model.policies else nullcontext():
            for name, actor in self.policies.items():
                self.model.place({key: own.parameter for key, own in actor.optimizer.shards.items() if name})
                yield name, actor

    def adapters(self) -> Iterator[tuple[str, dict[str, Tensor], float]]:
        """(policy, its adapter under peft's names in files, the scale of that). Collective."""
        lora = self.model.module.active_peft_config
        for name, _ in self.placed():
            yield name, gather_adapter(self.model), lora.lora_alpha / lora.r

    def _parts(self, batch: Batch) -> Iterator[tuple[str, PolicyActor, Batch, Any]]:
        """Each policy, its part of a batch, and where the tokens of that are."""
        names = dict(enumerate(self.config.model.policies))
        sides = [0] * batch.num_sequences if batch.side is None else batch.side.tolist()
        for name, actor in self.placed():
            rows = [i for i, side in enumerate(sides) if names.get(side, names.get(0, "")) == name]
            yield name, actor, batch.select(rows) if names else batch, batch.tokens_of(rows) if names else slice(None)

    def warm_up(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Compile the passes of a step, until `should_stop`; nothing where `use_torch_compile` is off. Call it after
        `prepare`."""
        data, actor = self.config.data, self.actor
        longest = data.max_prompt_length + data.max_response_length
        one_update = actor.steps.epochs == 1 and data.train_batch_size <= actor.steps.prompts
        policy_scores = self.config.algorithm.use_kl_in_reward or not one_update
        warm_up(actor, longest=longest, scores_apart=policy_scores, should_stop=should_stop)
        if self.critic is not None:
            warm_up(self.critic, longest=longest, scores_apart=True, should_stop=should_stop)

    def plan(self, outline: BatchOutline) -> BatchPlan:
        """The plan for a batch; `compute_logprobs` without effect may be left out. Raises UserError."""
        referred = self.reference is not None and full_kl_in(self.config) != "loss"
        taught = self._teachers is not None and self.config.distillation.topk == 0
        scores = referred or taught or self.critic is not None or self._needs_old_logprobs(outline.prompts)
        return BatchPlan(self.actor.assign_shares(outline), scores and outline.prompts > 0)

    def pack(self, trajectories: Sequence[Trajectory], version: int | None) -> Batch:
        """A batch of all sound trajectories."""
        return pack_tokens(trajectories, version, sides=bool(self.config.model.policies))

    def compute_logprobs(self, batch: Batch) -> Batch:
        """The batch with the columns that its update needs: old and reference log-probs, values."""
        self._begin_passes()
        with self.profiling.phase(self._step, "logprobs"), self.meter.phase("logprobs"):
            return self._computed(batch)

    def _begin_passes(self) -> None:
        """Have the parameters on the device, and choose the sizes of passes once a step, when an engine that sleeps has
        given its memory back. The first step has more of it: the optimizer makes its moments at the end."""
        self.place_parameters(self.device)
        if self.device.type != "cuda" or self._fitted == self._step:
            return
        self._fitted, policy, before = self._step, self.actor, self._described
        fit_passes(self.config, list(self._trainables().values()), self._held(), self.ranks)
        self._described = description(policy)
        if self.ranks.first and self._described != before:
            log.warning("update: %s", self._described)  # a warning, which is shown

    def _held(self) -> list[Reference]:
        """The models that are not trained."""
        return [*filter(None, [self.reference]), *(self._teachers.models.values() if self._teachers else ())]

    def _flops(self) -> float:
        models = [*(each.model for each in self._trainables().values()), *(each.model for each in self._held())]
        return sum(model.flops for model in set(models))

    def _computed(self, batch: Batch) -> Batch:
        prompts = len(prompts_of(batch, self.ranks))
        bypassed, full_kl = self.config.algorithm.rollout_correction.bypass_mode, full_kl_in(self.config)
        if not prompts:
            return batch
        batch = batch.to(self.device)
        compared = self.reference if full_kl == "reward" else None
        if compared or (not bypassed and self._needs_old_logprobs(prompts)):
            columns = torch.zeros(3, batch.num_tokens, device=self.device)
            for _, own, part, tokens in self._parts(batch):
                scored = own.logprobs(part, compared)
                columns[: len(scored), tokens] = torch.stack(scored)
            batch.old_logprobs, batch.kl = columns[0], columns[2] if compared else batch.kl
        if bypassed:
            batch.old_logprobs = batch.rollout_logprobs
        if self.reference is not None and full_kl is None:
            batch.ref_logprobs = self._referred(batch, self.reference)
        if self._teachers is not None and self.config.distillation.topk == 0 and batch.teacher is not None:
            batch.teacher_logprobs = self._teachers.logprobs(batch)
        if self.critic is not None:
            batch.values = self.critic.values(batch)
        return batch

    def _referred(self, batch: Batch, reference: Reference) -> Tensor:
        """The reference's log-probs, f32 [T]; early gradients have those of their sequences. Collective."""
        early = self.actor.early.pending
        done = None if early is None else early.indices_in(batch)
        if early is None or done is None:
            return reference.logprobs(batch)
        left = sorted(set(range(batch.num_sequences)) - set(done))
        column = torch.zeros(batch.num_tokens, device=batch.ids.device)
        column[batch.tokens_of(done)] = early.ref_logprobs()
        column[batch.tokens_of(left)] = reference.logprobs(batch.select(left))
        return column

    def can_accumulate_early(self) -> bool:
        """Whether `accumulate_early` is of use."""
        reference = self.reference
        referred = reference is not None and (reference.offload or self.ranks.world > 1)
        alone = self.critic is None and not referred and len(self.policies) == 1
        return alone and self.actor.is_additive(self.config.data.train_batch_size)

    def accumulate_early(self, part: Batch) -> None:
        """Compute the gradients of this rank's share of whole groups with advantages. The next `update` uses them if it
        has these groups."""
        self._begin_passes()
        with self.meter.phase("update"):
            self.actor.early.accumulate(self._computed(part))

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on a batch with advantages; returns metrics. The policy waits for `trainer.critic_warmup` steps."""
        critic_only = self.critic is not None and self._step <= self.config.trainer.critic_warmup
        metrics: dict[str, float] = {}
        early, freq, step = self.actor.early, self.config.ref.update_freq, self._step
        self._begin_passes()
        with self.profiling.phase(step, "update", last=True), self.meter.phase("update"):
            if self.critic is not None:
                metrics |= self.critic.update(batch)
            for name, actor, part, _ in () if critic_only else self._parts(batch):
                found = actor.update(part)
                metrics |= found if actor is self.actor else {f"{name}/{key}": value for key, value in found.items()}
            if (used := early.used) is not None:
                metrics["perf/early_share"] = self.ranks.sum(used.num_tokens) / self.ranks.sum(batch.num_tokens)
        if self.reference is not None and freq > 0 and step % freq == 0:
            self.reference.copy_from(self.model)
        if self._teachers is not None:
            self._teachers.follow(self.model)
        refused = {"perf/early_refused": 1.0} if early.refused else {}
        if self.ranks.world > 1 and self.device.type == "cuda":
            metrics |= self.slow_rank.metrics(product_seconds(self.device))
        return metrics | refused | self.meter.take()

    @property
    def _teachers(self) -> RankTeachers | None:
        return None if self.distiller is None else self.distiller.ranks

    def _frozen(self) -> dict[str, Reference]:
        """Models that change without being trained, which checkpoints hold."""
        followed = {"reference": self.reference} if self.reference and self.config.ref.update_freq > 0 else {}
        teachers = self._teachers
        return followed | ({f"teacher {i}": teachers.models[i] for i in teachers.ema} if teachers else {})

    def _needs_old_logprobs(self, prompts: int) -> bool:
        algorithm = self.config.algorithm
        apart = algorithm.use_kl_in_reward or algorithm.rollout_correction.bypass_mode
        return apart or not self.actor.single_step(prompts)

    @property
    def _step(self) -> int:
        """The current training step, by the optimizer's schedule."""
        return (self.critic or self.actor).optimizer.schedule_step + 1

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool = True, model_only: bool = False) -> None:
        """Write the checkpoint of `step`, with the run's `state`; the `last` one is on disk when this returns.

        `model_only`: only the model in Hugging Face format, unless `save_contents` names the contents."""
        asked = self.config.actor.checkpoint.save_contents
        contents = asked if asked is not None else MODEL_ALONE if model_only else RESUMABLE
        mine = {name: chosen(trainable.state_dict(), contents) for name, trainable in self._trainables().items()}
        mine |= {name: chosen(model.state_dict(), contents) for name, model in self._frozen().items()}
        if "rows" in state:
            state = state | {"rows": saved_groups(state["rows"])}
        mine |= state if "extra" in contents else {}
        whole, others = "hf_model" in contents, self.config.model.policies[1:]

        def export(out: Path) -> None:
            for name, actor in self.placed():
                write_model(actor.model, self.processor, out / name if name in others else out, weights=whole)

        self.saver.save(folder, step, mine, export)
        if last:
            self.saver.wait()

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Restore a checkpoint: (its step, the run's state). Raises UserError."""
        step, state = checkpoints.load(path, ranks=self.ranks)
        check_resumable(path, state)
        contents = self.config.actor.checkpoint.load_contents
        for name, trainable in self._trainables().items():
            part = state.pop(name, {})
            if "model" in contents and "parameters" not in part:
                raise UserError(
                    f"{path} has no {name}; set trainer.resume_mode=disable, or load_contents without model"
                )
            trainable.load_state_dict(chosen(part, contents))
        for name, model in self._frozen().items():
            if saved := chosen(state.pop(name, {}), contents):
                model.load_state_dict(saved)
        if "rows" in state and self.ranks.first:
            state["rows"] = restored_groups(state["rows"])
        return step, state if "extra" in contents else {}

    def score(self, ids: list[int], policy: str = "") -> Tensor:
        """A policy's log-prob of each token given those before it, f32 [len(ids)] on the CPU; 0 for the first.

        `policy`: its name, of several."""
        with uncompiled():  # a few tokens do not pay for compiling
            found = [score_tokens(self.model, ids, self.device) for name, _ in self.placed() if name == policy]
        return found[0]

    def place_parameters(self, device: torch.device | str = "cpu") -> None:
        """Move the policy's parameters to a device, with `param_offload`; the next pass moves them back."""
        if self.config.actor.fsdp_config.param_offload and self.ranks.mesh is not None:
            self.model.move(device)

    def _trainables(self) -> dict[str, Trainable]:
        others = {f"policy {name}": actor for name, actor in self.policies.items() if actor is not self.actor}
        return {"policy": self.actor} | others | ({"critic": self.critic} if self.critic else {})
