"""What several processes do in test_multi_rank.py, each rank the same, and one process alone to compare with."""

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentrl.config.schema import Actor, Critic, Distillation, Model, Optim, PolicyLoss, RolloutCorrection, Trainer
from agentrl.config.schema.actor import Router
from agentrl.config.schema.critic import CriticOptim
from agentrl.config.schema.fsdp import FsdpConfig, MixedPrecision
from agentrl.engines.servers.weights.adapter import AdapterWeights
from agentrl.engines.servers.weights.policy import PolicyWeights
from agentrl.training import PolicyActor, load_model
from agentrl.training.batches.outline import BatchOutline
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.lineage import latest
from agentrl.training.checkpoint.resuming import Resuming
from agentrl.training.checkpoint.saving import Saver
from agentrl.training.model.export import gather_adapter, write_model
from agentrl.training.model.loading import float32_masters
from agentrl.training.model.routing_probe import routing_of
from agentrl.training.model.value_model import load_value_model
from agentrl.training.parallel.process_group import join_ranks
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.parallel.sharding import load_on_ranks
from agentrl.training.parallel.shards import TensorChunk
from agentrl.training.roles.frozen import Reference
from agentrl.training.roles.teachers import RankTeachers
from agentrl.training.update.critic import ValueCritic
from agentrl.training.update.distillation import Distiller
from agentrl.training.update.micro_batches import MicroBatching
from agentrl.training.update.trainable import Trainable
from tests.training.saved import save_checkpoint
from tests.training.tiny import CPU, random_batch, smoothed

WORLD = 2
STEPS = 2
"""The second one depends on the optimizer's state of the first."""
LENGTHS = [7, 1, 12, 4, 9, 6, 3, 8]
MODELS = {
    "llama": {"tie_word_embeddings": True},
    # one key-value head for two neighbours, and an attention window that ends within sequences
    "mistral": {"num_key_value_heads": 1, "sliding_window": 5},
    "qwen3": {},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_dim": 64, "conv_dim": 64},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 0,
        "n_group": 1,
        "topk_group": 1,
    },
    "qwen3_next": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
    },
}


HEAD = ["q_proj", "up_proj", "lm_head"]
"""Layers with the output layer among them."""


@dataclass
class Case:
    """One way to train."""

    model: str = "llama"
    lora_rank: int = 0
    target_modules: Any = "all-linear"
    target_parameters: str | None = None
    packed: bool = True
    seq_world: int = 1
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)
    actor: dict[str, Any] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=lambda: LENGTHS)
    checkpointing: bool = False
    dtype: str = "float32"
    float32_head: bool = False
    ledgers: int = 1
    """Of a trajectory."""
    correction: RolloutCorrection | None = None
    shares: bool = False
    """Whether the ranks compute equal prompts once; one process computes every token."""
    rounding: float = 2e-5
    """What figures may differ by."""
    replay: bool = False
    """Whether given experts are replayed."""
    early: bool = False
    """Whether the ranks begin an update with some of its prompts; one process does not."""
    distilled: bool = False
    """Whether sequences have teachers: a frozen model, the policy with another prompt, or none."""

    def load(self, models: Path) -> Callable[[torch.device], Any]:
        def load(device: torch.device) -> Any:
            model = Model(
                path=str(models / self.model),
                lora_rank=self.lora_rank,
                target_modules=self.target_modules,
                target_parameters=self.target_parameters,
                enable_gradient_checkpointing=self.checkpointing,
                dtype=self.dtype,
                enable_fp32_lm_head=self.float32_head,
            )
            loaded = float32_masters(load_model(model, device=device, seed=0))
            if not self.packed:
                loaded.base.set_attn_implementation("sdpa")
            return loaded

        return load

    def actor_on(self, models: Path, ranks: Ranks) -> PolicyActor:
        settings = {"ppo_mini_batch_size": 2, "optim": Optim(lr=1e-2), "ppo_max_token_len_per_gpu": 24} | self.actor
        module = load_on_ranks(self.load(models), ranks, self.fsdp_config, device=CPU)
        if self.replay:
            module.routing = routing_of(module, CPU, "actor.router_replay.mode=R3")
        trainable = PolicyActor(
            module,
            actor=Actor(**settings),
            temperature=0.7,
            device=CPU,
            total_steps=9,
            reference=self.reference(module, models, ranks) if settings.get("kl_loss_type") == "full" else None,
            rollout_correction=self.correction,
            distiller=self.distiller(module, models, ranks) if self.distilled else None,
            shares=self.shares and ranks.world > 1,
            ranks=ranks,
        )
        if trainable.optimizer.scale.needed:  # so small a batch overflows in the first steps
            trainable.optimizer.scale.value = 2.0**8
        return smoothed(trainable)

    def reference(self, policy: Any, models: Path, ranks: Ranks) -> Reference:
        own = load_on_ranks(self.load(models), ranks, self.fsdp_config, device=CPU)
        return Reference(policy if self.lora_rank else own, temperature=0.7, micro_batching=MicroBatching(), device=CPU)

    def distiller(self, policy: Any, models: Path, ranks: Ranks) -> Distiller:
        frozen = self.reference(policy, models, ranks)
        own = Reference(policy, temperature=0.7, micro_batching=MicroBatching(), device=CPU, as_is=True)
        keys = Distillation(reward=False, topk=-1, divergence="jsd")
        return Distiller(keys, RankTeachers({0: frozen, 1: own}, {}))


LOOSE = {"use_kl_loss": True, "kl_loss_coef": 0.1, "entropy_coeff": 0.05}
FULL = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "full"}
FIXED = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 2}
SPLIT = FsdpConfig(expert_parallel_size=2)
SPLIT_KEPT = FsdpConfig(expert_parallel_size=2, reshard_after_forward=False)
KEPT = FsdpConfig(reshard_after_forward=False)
SHORT = Optim(lr=1e-3, optimizer="adamw_16bit")
"""Its moments are rounded at random: other draws for other chunks."""
ON_CPU = {"fsdp_config": FsdpConfig(optimizer_offload=True)}
COVARIANCE = PolicyLoss("kl_cov", {"kl_cov_ratio": 0.3})
CLIPPED = PolicyLoss("clip_cov", {"clip_cov_ratio": 0.3, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0})
BY_TRAJECTORY = {"loss_agg_mode": "seq-mean-token-mean", "shuffle": True, "ppo_epochs": 2}
BYPASSED = RolloutCorrection(
    rollout_is="sequence",
    rollout_is_batch_normalize=True,
    rollout_rs="geometric",
    bypass_mode=True,
    loss_type="reinforce",
)
HALF = FsdpConfig(reshard_after_forward=False, mixed_precision=MixedPrecision(param_dtype="float16"))
BFLOAT16 = FsdpConfig(mixed_precision=MixedPrecision(param_dtype="bfloat16"))
CASES = {
    "fsdp2": Case(),
    "fixed": Case(actor=FIXED),
    "one-by-one": Case(packed=False),
    "fewer-sequences-than-ranks": Case(lengths=[9]),
    "kept-whole": Case(fsdp_config=KEPT, checkpointing=True),
    "lora": Case("qwen3", lora_rank=4),
    "shuffled-kl-cov": Case(actor=BY_TRAJECTORY | {"policy_loss": COVARIANCE}, ledgers=2),
    "bypassed": Case(actor={"loss_agg_mode": "seq-mean-token-sum"}, correction=BYPASSED),
    "sp": Case(seq_world=2, checkpointing=True),
    "sp-gqa-window": Case("mistral", seq_world=2, actor=FIXED | LOOSE),
    "distilled-sp": Case(seq_world=2, distilled=True),
    "full-kl-shared": Case(actor=FULL, shares=True),
    "full-kl-lora": Case("qwen3", lora_rank=4, target_modules=HEAD, fsdp_config=KEPT, actor=FULL),
    "bfloat16": Case(dtype="bfloat16"),
    "float16": Case(fsdp_config=HALF, rounding=0.06),
    "float32-head": Case(fsdp_config=BFLOAT16, float32_head=True),
    "begun-early": Case(
        actor={"ppo_mini_batch_size": 4, "loss_agg_mode": "seq-mean-token-mean"}, ledgers=2, early=True
    ),
    "begun-early-shared": Case(actor={"ppo_mini_batch_size": 4}, shares=True, early=True),
    "lora-bfloat16": Case("qwen3", lora_rank=4, dtype="bfloat16", rounding=0.05),
    "sp-lora": Case("qwen3", lora_rank=4, target_modules=HEAD, seq_world=2),
    "split-experts": Case("qwen3_moe", fsdp_config=SPLIT, checkpointing=True),
    "split-experts-one-by-one": Case("gpt_oss", fsdp_config=SPLIT_KEPT),
    "sp-hybrid": Case("lfm2", seq_world=2, checkpointing=True),
    "muon": Case("mistral", actor={"optim": Optim(lr=1e-3, optimizer="muon")}, rounding=0.01),  # in bfloat16
    "experts-on-cpu": Case("qwen3_moe", actor=ON_CPU),
}
RESUMED = ("fsdp2", "lora", "muon", "experts-on-cpu", "split-experts")
FURTHER = {
    "entropy-and-kl": Case("qwen3", actor=LOOSE),
    "distilled": Case(distilled=True),
    "distilled-one-by-one": Case(packed=False, distilled=True),
    "distilled-lora": Case("qwen3", lora_rank=4, fsdp_config=KEPT, distilled=True),
    "full-kl": Case(actor=FULL),
    "full-kl-one-by-one": Case(packed=False, lora_rank=4, actor=FULL),
    "full-kl-sp": Case(seq_world=2, actor=FIXED | FULL),
    "kept-whole-lora": Case("qwen3", lora_rank=4, fsdp_config=KEPT),
    "copies": Case(fsdp_config=FsdpConfig(fsdp_size=1)),
    "experts": Case("qwen3_moe"),
    "experts-replayed": Case("qwen3_moe", replay=True),
    "experts-replayed-sp": Case("qwen3_moe", replay=True, seq_world=2),
    "experts-replayed-one-by-one": Case("qwen3_moe", replay=True, packed=False, checkpointing=True),
    "split-experts-mixtral": Case("mixtral", fsdp_config=SPLIT, actor=FIXED | LOOSE),
    "split-experts-glm": Case("glm4_moe", fsdp_config=SPLIT_KEPT, lengths=[9]),
    "split-experts-next": Case("qwen3_next", fsdp_config=SPLIT, lengths=[7, 9, 6, 8]),
    "split-experts-sp": Case("qwen3_moe", seq_world=2, fsdp_config=SPLIT_KEPT, checkpointing=True),
    "split-experts-lora": Case("qwen3_moe", lora_rank=4, fsdp_config=SPLIT),
    "split-experts-full-kl": Case("mixtral", fsdp_config=SPLIT, actor=FULL),
    "experts-lora": Case("qwen3_moe", lora_rank=4, target_parameters="all-experts"),
    "moved-bias": Case("glm4_moe", actor={"router": Router(bias_update=0.1)}),
    "hybrid": Case("lfm2"),
    "hybrid-shared": Case("lfm2", shares=True),
    "clip-cov": Case(actor={"policy_loss": CLIPPED}),
    "momentum": Case(actor={"optim": Optim(lr=1e-2, optimizer="sgd", override_optimizer_config={"momentum": 0.9})}),
    "muon-on-cpu": Case("mistral", actor=ON_CPU | {"optim": Optim(lr=1e-3, optimizer="muon")}, rounding=0.01),
    "16-bit-on-cpu": Case("qwen3_moe", actor=ON_CPU | {"optim": SHORT}, rounding=0.01),
    "16-bit-lora": Case("qwen3", lora_rank=4, actor={"optim": SHORT}, rounding=0.01),
    "one-prompt-a-step": Case(actor={"ppo_mini_batch_size": 1}, lengths=[9, 4, 6]),
}
"""The same for `make test-slow`."""
FURTHER_RESUMED = (
    "copies",
    "kept-whole-lora",
    "experts-lora",
    "moved-bias",
    "momentum",
    "16-bit-on-cpu",
    "16-bit-lora",
)
ON_FOUR = {
    "four-split-in-two": Case("qwen3_moe", fsdp_config=SPLIT, checkpointing=True),
    "four-split-in-four": Case("qwen3_moe", fsdp_config=FsdpConfig(expert_parallel_size=4)),
    "four-split-copies": Case("qwen3_moe", fsdp_config=FsdpConfig(expert_parallel_size=2, fsdp_size=2)),
    "four-split-sp": Case("qwen3_moe", seq_world=2, fsdp_config=SPLIT_KEPT),
    "four-split-mixtral": Case("mixtral", fsdp_config=SPLIT_KEPT, actor=FIXED | LOOSE),
    "four-split-gpt-oss": Case("gpt_oss", fsdp_config=SPLIT),
    "four-split-glm": Case("glm4_moe", fsdp_config=SPLIT, lengths=[9]),
    "four-split-next": Case("qwen3_next", fsdp_config=SPLIT, lengths=[7, 9, 6, 8]),
}
"""For four processes, in `make test-slow`."""
ON_FOUR_RESUMED = ("four-split-in-two", "four-split-in-four")
ALL = CASES | FURTHER | ON_FOUR


def batch_of(case: Case, step: int) -> Any:
    batch = random_batch(case.lengths, seed=step)
    batch.advantages[: batch.cu_seqlens[1]] = 0.0  # a sequence without gradient
    batch.trajectory = batch.trajectory // case.ledgers
    if case.replay:
        draw = torch.Generator().manual_seed(step)
        batch.experts = torch.rand(batch.num_tokens, 2, 4, generator=draw).argsort(-1)[..., :2].to(torch.uint8)
        batch.experts[5:9] = 255  # tokens that route by themselves
    if case.shares:  # equal prompts, within groups and across them
        batch.ids = torch.where(batch.mask | (batch.positions > 3), batch.ids, batch.positions + 9)
    if case.distilled:
        batch.teacher = torch.arange(batch.num_sequences) % 3 - 1
        told = torch.tensor([[2, 5, 6, 7, 8, 9], [0, -1, -1, -1, -1, -1], [2, 9, 8, -1, -1, -1]])
        batch.teacher_prompts = told.repeat(batch.num_sequences, 1)[: batch.num_sequences]
    if case.actor.get("use_kl_loss"):
        batch.ref_logprobs = batch.mask * torch.linspace(-4, -3, batch.num_tokens)
    return batch


def share_of(trainable: Trainable, whole: Any) -> Any:
    """This rank's share."""
    ranks = trainable.micro_batching.ranks
    outline = BatchOutline.of(whole, trainable.micro_batching.shares)
    return whole.share(trainable.assign_shares(outline)[ranks.data_rank])


def outcome(case: Case, trainable: PolicyActor, steps: range) -> dict[str, Any]:
    """What some steps come to: the share and its log-probs before each, its metrics, and the weights."""
    scored, metrics, shares = [], [], []
    for step in steps:
        batch = share_of(trainable, whole := batch_of(case, step))
        shares.append((batch.index.tolist(), batch.num_tokens, whole.lengths))
        scored.append((whole.tokens_of(shares[-1][0]), torch.stack(trainable.logprobs(batch))))
        if case.early and trainable.micro_batching.ranks.world > 1:
            batch = begun(trainable, whole)
        metrics.append(trainable.update(batch))
    weights = {n: t.clone() for n, t in PolicyWeights(trainable.model).tensors()}
    for name, tensor in PolicyWeights(trainable.model, dtype=torch.bfloat16).tensors():  # gathered in fewer bytes
        assert torch.equal(tensor, weights[name].to(tensor.dtype)), name
    if case.target_parameters or case.target_modules == HEAD:  # engines take no such adapter
        weights |= {n: t.clone() for n, t in gather_adapter(trainable.model).items()}
    elif case.lora_rank:
        weights |= {n: t.clone() for n, t in AdapterWeights(trainable.model).tensors()}
    found = {"scored": scored, "metrics": metrics, "weights": weights, "shares": shares}
    if case.shares:
        sizes = trainable.micro_batching
        layouts = [sizes.micro_batch(batch, rows).shared for rows in sizes.split(batch)]
        found["computed"] = sum(layout.kept.numel() for layout in layouts if layout) or batch.num_tokens
    return found | ({"head_error": head_error(trainable, batch)} if case.float32_head else {})


def begun(trainable: PolicyActor, whole: Any) -> Any:
    """This rank's share, dealt after an update was begun with two of four prompts, one by one."""
    sizes, keys = trainable.micro_batching, set[int]()
    for prompt in (2, 0):
        part = whole.select((whole.group == prompt).nonzero()[:, 0].tolist())
        part.trajectory = part.trajectory.unique(return_inverse=True)[1]
        part.group = torch.zeros_like(part.group)
        assert trainable.is_additive(4)
        trainable.early.accumulate(share_of(trainable, part))
        keys |= set(part.key.tolist())
    shares = trainable.assign_shares(BatchOutline.of(whole, sizes.shares, keys))
    batch = whole.share(shares[sizes.ranks.data_rank])
    assert 0 < len(keys.intersection(batch.key.tolist())) < len(keys)  # each rank has some of them
    return batch


@torch.no_grad()
def head_error(trainable: PolicyActor, batch: Any) -> float:
    """Of log-probs, beside those of an output layer in float64 on the same hidden states."""
    score = trainable.score
    part, own = score._own(batch, every_token=False)
    hidden, weight, *_ = score.model.run_gathered(lambda: score._kept(score._read(batch, part, own)))
    assert (hidden.dtype, weight.dtype) == (torch.bfloat16, torch.bfloat16)
    exact = (hidden.double() @ weight.double().T * trainable.score.scale).log_softmax(-1)
    wanted = batch.mask & (batch.positions > 0)
    found = trainable.score(batch)[0][wanted]
    return float((exact.gather(-1, batch.ids[wanted][:, None])[:, 0] - found).abs().max())


def values(models: Path, ranks: Ranks) -> dict[str, Any]:
    """The same of a critic."""
    network = Model(path=str(models / "llama"))
    module = load_on_ranks(lambda d: load_value_model(network, device=d, seed=0), ranks, FsdpConfig(), device=CPU)
    critic = Critic(optim=CriticOptim(lr=1e-2), ppo_mini_batch_size=2)
    trainable = smoothed(ValueCritic(module, critic=critic, actor=Actor(), device=CPU, total_steps=9, ranks=ranks))
    metrics = []
    for step in range(STEPS):
        whole = random_batch(LENGTHS, seed=step)
        whole.returns = torch.linspace(0, 1, whole.num_tokens) * whole.mask
        batch = share_of(trainable, whole)
        metrics.append(trainable.update(batch))
    return {
        "scored": [(whole.tokens_of(batch.index.tolist()), trainable.values(batch))],
        "metrics": metrics,
        "weights": {},
    }


class NoTokenizer:
    def save_pretrained(self, path: Path) -> None:
        """There is none."""


def write_checkpoint(trainable: PolicyActor, folder: Path, ranks: Ranks, *, background: bool) -> None:
    saver = Saver(Trainer(max_actor_ckpt_to_keep=1), ranks, background=background)
    for step in (1, 2):
        state = {"policy": trainable.state_dict(), "rows": {"at": step}}
        saver.save(folder, step, state, lambda out: write_model(trainable.model, NoTokenizer(), out, weights=True))
    if background:
        with torch.no_grad():  # what is being written is a copy
            for parameter in trainable.model.module.parameters():
                parameter.mul_(2.0)
    saver.wait()


def resume(case: Case, models: Path, folder: Path, ranks: Ranks) -> dict[str, Any]:
    trainable = case.actor_on(models, ranks)
    with torch.no_grad():
        for parameter in trainable.model.module.parameters():
            if parameter.requires_grad:
                parameter.zero_()
    _, state = checkpoints.load(latest(folder), ranks=ranks)
    trainable.load_state_dict(state["policy"])
    return outcome(case, trainable, range(1, STEPS))


def rank(
    index: int, world: int, port: int, models: Path, results: Path, names: Sequence[str], resumed: Sequence[str]
) -> None:
    """One of the processes: each of the cases `names`, and with checkpoints those `resumed`."""
    os.environ |= {"RANK": str(index), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)

    def keep(name: str, found: dict[str, Any], ranks: Ranks) -> None:
        torch.save(found, results / f"{name}-{ranks.rank}.pt")

    for name in names:
        case = ALL[name]
        sizes = case.fsdp_config
        ranks = join_ranks(
            CPU,
            sequence_parallel=case.seq_world,
            fsdp_size=sizes.fsdp_size,
            expert_parallel=sizes.expert_parallel_size,
        )
        found = attempt(lambda case=case, ranks=ranks: outcome(case, case.actor_on(models, ranks), range(STEPS)))
        keep(name, found, ranks)
        if name in resumed:
            wrote, writes = results / f"alone-{name}", results / f"many-{name}"
            keep(f"{name}-resumed", attempt(lambda c=case, w=wrote, r=ranks: resume(c, models, w, r)), ranks)
            keep(f"{name}-wrote", attempt(lambda c=case, w=writes, r=ranks: go_and_write(c, models, w, r)), ranks)
    ranks = join_ranks(CPU)
    if world == WORLD:
        keep("critic", attempt(lambda: values(models, ranks)), ranks)
        keep("lineage", attempt(lambda: branch(results / "lineage", ranks)), ranks)
    torch.distributed.destroy_process_group()


def attempt(do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it found, or what went wrong: one case that fails must not hide the others."""
    try:
        return do()
    except Exception:
        return {"error": traceback.format_exc()}


def go_and_write(case: Case, models: Path, folder: Path, ranks: Ranks) -> dict[str, Any]:
    trainable = case.actor_on(models, ranks)
    outcome(case, trainable, range(1))
    write_checkpoint(trainable, folder, ranks, background=case is CASES["fsdp2"])
    return {}


def branch(folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Go on from the newest of three checkpoints, which is damaged, then from the first: steps, and what is left."""
    for step in (1, 2, 3):
        save_checkpoint(folder, step, {"w": {"x": TensorChunk((4,), 2 * ranks.rank, torch.ones(2))}}, ranks=ranks)
    if ranks.first:
        os.truncate(folder / "global_step_3" / "w-00001.safetensors", 20)
    ranks.attempt(lambda: None)
    steps = []
    for mode, path in (("auto", None), ("resume_path", str(folder / "global_step_1"))):
        resuming = Resuming(folder, mode, path)
        candidates = ranks.broadcast(list(resuming.candidates()) if ranks.first else [])
        found = resuming.first(partial(checkpoints.load, ranks=ranks), candidates)
        assert found is not None
        steps.append(found[1][0])
        ranks.attempt(lambda r=resuming, step=steps[-1]: r.claim(step) if ranks.first else None)
    return {"steps": steps, "left": sorted(str(path.relative_to(folder)) for path in folder.glob("**/global_step_*"))}


def alone(name: str, models: Path) -> dict[str, Any]:
    """The same by one process."""
    if name == "critic":
        return values(models, ALONE)
    case = ALL[name]
    return outcome(case, case.actor_on(models, ALONE), range(STEPS))
