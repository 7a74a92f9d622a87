"""Nothing that a model samples, a tool returns or a row holds ends a run: whole runs over texts chosen to do so."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl.chat import Chat
from agentrl.config import compose
from agentrl.core.json_text import encoded
from agentrl.engines.engine import Generation, Sampling
from agentrl.runtime import local
from agentrl.tasks.models import tiny
from agentrl.tracking import conversation, load_trajectories, read_metrics
from agentrl.train import train
from agentrl.view.api import Api
from tests.rollout.scripted import END, ScriptedEngine, calls

pytestmark = pytest.mark.integration

N = 4
DEEP = 90
TOOLS = '''
import math
from agentrl.tools import function_tool

ODD = {
    "half": "a\\ud83db",
    "bytes": b"caf\\xe9".decode("utf-8", "surrogateescape"),
    "long": 10**5000,
    "list": [10**5000, "\\udc80", math.nan],
    "nul": "a\\0b",
    "big": "x" * 1_000_000,
    "none": None,
    "empty": "",
    "marks": "agentrlmark agentrlfollower <|im_end|><|im_start|>assistant",
}
ODD["ring"] = {"x": 1}
ODD["ring"]["self"] = ODD["ring"]

@function_tool
def odd(what: str) -> str:
    """Answers oddly.

    Args:
        what: a word
    """
    return ODD.get(what, what)

@function_tool
def count(n: float) -> str:
    """Counts.

    Args:
        n: a number
    """
    return str(n)
'''
WRONG = {
    "half a pair": calls("odd", r'{"what": "\ud83d"}'),
    "the other half": calls("odd", r'{"what": "ab\udc00c"}'),
    "half a pair in a name": calls(r"\ud83d", "{}"),
    "half a pair in a key": calls("odd", r'{"\ud83d": 1}'),
    "too many digits": calls("count", f'{{"n": {"7" * 4400}}}'),
    "infinity": calls("count", '{"n": 1e999}'),
    "not a number": calls("count", '{"n": NaN}'),
    "deep": calls("odd", f'{{"what": {"[" * DEEP}{"]" * DEEP}}}'),
    "very deep": calls("odd", f'{{"what": {"[" * 2000}'),
    "no tool of that name": calls("x" * 200, "{}"),
    "a name that is markup": calls("<|im_start|>", "{}"),
    "no JSON": "<tool_call>{</tool_call>",
    "open": "<tool_call>" * 9,
}
FINE = {
    **{f"tool: {what}": calls("odd", json.dumps({"what": what})) for what in ("half", "bytes", "long", "list", "nul")},
    **{f"tool: {what}": calls("odd", json.dumps({"what": what})) for what in ("big", "none", "empty", "marks", "ring")},
    "nul": calls("odd", r'{"what": "a\u0000b"}'),
    "a whole pair": calls("odd", r'{"what": "\ud83d\ude00"}'),
    "long number": calls("count", f'{{"n": {"7" * 400}}}'),
    "nothing": "",
    "controls": "\x00\x01\x1b[2J\u2028\ufeff\u202e 12",
    "digits": "9" * 300 + ".",
    "boxes": "\\boxed{" * 40,
    "think": "<think>" * 3 + "</think>" * 9,
    "markup": "{{ 7 * 7 }}{% for %} [bold]x[/] </s>",
}
TEXTS = {**WRONG, **FINE}


def name_of(key: str) -> str:
    """The text that a trajectory begins with: rows are shuffled, and keys tell which it is."""
    _, uid, sample = key.split("/")
    place = (int(uid.rpartition(":")[2]) - 1) * N + int(sample)
    return list(TEXTS)[place % len(TEXTS)]


class Hostile(ScriptedEngine):
    """Each trajectory of a step says another of TEXTS, then answers."""

    def __init__(self, chat: Chat) -> None:
        super().__init__(chat, lambda key, turn: ("12" if turn else TEXTS[name_of(key)]) + END, version=0)

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        drawn = await super().generate(token_ids, sampling, key=key, media=media)
        whole = drawn.token_ids[-1:] == self.chat.template.encode(END)
        return Generation(drawn.token_ids, drawn.logprobs, "stop" if whole else "length", 0)

    async def update_weights(self, version: int) -> None:
        self.turns.clear()

    async def close(self) -> None:
        pass


def rows(file: Path) -> str:
    """As many as TEXTS need; the first holds what JSON lets through and UTF-8 does not."""
    prompts = [r"half \ud83d, \udc00 nul \u0000", *(f"What is {i} and 1?" for i in range(-(-len(TEXTS) // N) - 1))]
    line = '{{"prompt": [{{"role": "user", "content": "{}"}}], "data_source": "s\\ud83d", "reward_model": {}}}\n'
    file.write_text("".join(line.format(prompt, '{"ground_truth": "12\\ud83d"}') for prompt in prompts))
    return str(file)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("hostile")
    (home / "texts.jsonl").write_text(json.dumps({"prompt": "What is 1 and 1? The answer is 12."}) + "\n")
    shape = tiny.TinyShape(vocab_size=400, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                           num_attention_heads=2, num_key_value_heads=2)  # fmt: skip
    tiny.prepare(home / "model", [home / "texts.jsonl"], shape=shape, seed=0)
    (home / "tools.py").write_text(TOOLS)
    return home


@pytest.mark.prevents("one odd text (half a surrogate pair, 5,000 digits) ends the run, and every resume of it")
@pytest.mark.parametrize("inference", [False, True])
def test_a_run_over_hostile_texts_ends_like_any_other(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inference: bool
) -> None:
    config = compose(
        [
            f"model.path={home / 'model'}",
            "model.chat_template=configs/templates/chatml_tools.jinja",
            f"data.train_files={rows(tmp_path / 'rows.jsonl')}",
            f"data.val_files={tmp_path / 'rows.jsonl'}",
            f"data.train_batch_size={-(-len(TEXTS) // N)}",
            f"actor.ppo_mini_batch_size={-(-len(TEXTS) // N)}",
            "data.max_prompt_length=1024",
            "data.max_response_length=6000",
            f"rollout.n={N}",
            f"rollout.val_kwargs.n={N}",
            "rollout.multi_turn.enable=true",
            f"rollout.multi_turn.function_tool_path={home / 'tools.py'}",
            f"rollout.multi_turn.use_inference_chat_template={inference}",
            "reward.custom_reward_function.name=agentrl.rewards.scorers:final_number",
            "trainer.device=cpu",
            "trainer.total_training_steps=1",
            "trainer.max_rollout_gap=null",  # the engine's log-probs are made up
            "trainer.log_val_generations=99",
            "trainer.logger=[console,file,tensorboard]",
            f"trainer.default_local_dir={tmp_path / 'run'}",
            f"trainer.rollout_data_dir={tmp_path / 'run/rollouts'}",
            f"trainer.validation_data_dir={tmp_path / 'run/validation'}",
        ],
        config_name="train",
    )
    monkeypatch.setattr(local.LocalRuntime, "_engine", lambda self, config, servers: Hostile(chat_of(self)))
    train(config)
    (metrics,) = [m for m in read_metrics(tmp_path / "run/metrics.jsonl") if "rollout/infra_drops" in m]
    assert metrics["rollout/infra_drops"] == 0
    assert "perf/dumps_failed" not in metrics
    records = load_trajectories(tmp_path / "run/rollouts/1.jsonl")
    said = {name_of(record["key"]): record for record in records}
    assert said.keys() == TEXTS.keys()
    outcomes = {name: {call["outcome"] for call in record["tool_calls"]} for name, record in said.items()}
    assert {name: outcomes[name] for name in WRONG} == {name: {"model_error"} for name in WRONG}
    called = [name for name, text in FINE.items() if "<tool_call>" in text]
    assert {name: outcomes[name] for name in called} == {name: {"ok"} for name in called}
    assert [name for name, record in said.items() if record["outcome"] != "ok" or record["reward"] is None] == []
    assert metrics["tools/model_error"] > 0
    shown_everywhere(tmp_path / "run", records)


def chat_of(runtime: Any) -> Chat:
    return Chat(runtime.tokenizer)


def shown_everywhere(run: Path, records: list[dict[str, Any]]) -> None:
    """The page's answers, and the conversations on a terminal."""
    api = Api([str(run)])
    for question, query in (("runs", {}), ("trajectories", {}), ("timeline", {"step": "1"}), ("match", {"step": "1"})):
        json.loads(encoded(api.answer(question, query)))
    for line in range(len(records)):
        json.loads(encoded(api.answer("trajectory", {"step": "1", "line": str(line)})))
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    for record in records:
        console.print(conversation(record))
