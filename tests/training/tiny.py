"""Tiny random models of real architectures, and random batches."""

from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from agentrl.training import Batch, pack, pack_ledgers
from agentrl.training.model.attention.choosing import use_packed_attention
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory, TurnReward

VOCABULARY = 97
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CPU = torch.device("cpu")


def tiny(kind: str = "llama", *, seed: int = 0, packed: bool = True, **fields) -> PreTrainedModel:
    """A random model whose logits are far from uniform."""
    torch.manual_seed(seed)
    module = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**(SIZES | fields)))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.2)
    if packed:
        assert use_packed_attention(module)
    return module.eval()


def lora(module: PreTrainedModel, std: float = 0.05) -> PeftModel:
    """The model with an adapter, one that does nothing where `std` is 0."""
    torch.manual_seed(1)
    module = get_peft_model(module, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=std)
    return module


def ledger(*turns: int, prompt: int = 3, tool: int = 2, seed: int = 0) -> Ledger:
    """A prompt, then turns of so many model tokens with tool tokens between."""
    draw = torch.Generator().manual_seed(seed)

    def ids(n: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (n,), generator=draw).tolist()

    made = Ledger()
    made.append_prompt(ids(prompt))
    for turn, n in enumerate(turns):
        if turn:
            made.append_observation(ids(tool), Source.TOOL, turn=turn)
        made.append_model(ids(n), [-4.0] * n, turn=turn, version=0)
    made.check()
    return made


def trajectory(
    *ledgers: Ledger,
    uid: str = "row",
    sample: int = 0,
    reward: float | None = 1.0,
    outcome: Outcome = Outcome.OK,
    turn_rewards: list[TurnReward] | None = None,
) -> Trajectory:
    return Trajectory(
        row=Row(uid=uid, prompt=[]),
        key=f"0/{uid}/{sample}",
        sample=sample,
        ledgers=list(ledgers),
        reward=reward,
        outcome=outcome,
        turn_rewards=turn_rewards or [],
    )


def random_batch(lengths: list[int], *, seed: int = 0, per_group: int = 2) -> Batch:
    """Sequences of the given numbers of model tokens (two turns each), `per_group` to a prompt, random advantages."""
    ledgers = [
        ledger(max(n // 2, 1), n - n // 2, prompt=2 + n % 3, seed=seed * 1000 + i) for i, n in enumerate(lengths)
    ]
    batch = pack_ledgers(ledgers, group=[i // per_group for i in range(len(lengths))])
    batch.key = torch.arange(len(lengths)) + 1000 * (seed + 1)
    batch.advantages = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(seed)) * batch.mask
    return batch


def smoothed(trainable: Any, epsilon: float = 1e-2) -> Any:
    """The trainable with AdamW steps that are as near to each other as the gradients are.

    AdamW divides a gradient by its own size, so one that is only rounding becomes a full step of either sign, which
    another CPU turns around. A large epsilon keeps such a step small; all of AdamW's state is there as before.
    """
    for group in trainable.optimizer.rules[0].param_groups:
        group["eps"] = epsilon
    return trainable


class MemoryStore:
    """The store of one process: a reference is a number."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def put(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def get(self, references: Sequence[int]) -> list[Any]:
        return [self.values[number] for number in references]


def packed(*trajectories: Trajectory, tool: float = 1.0, interaction: float = 1.0) -> Batch:
    """The trajectories with their rewards as a batch, by weights of turn rewards."""
    return pack(trajectories, tool_turn_weight=tool, interaction_turn_weight=interaction)
