"""Teachers on servers, in whole runs: each trajectory is scored by its row's teacher while others are made."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from aiohttp import web
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.tracking import read_metrics
from tests.e2e.conftest import agentrl
from tests.engines.teacher_server import TeacherServer

pytestmark = pytest.mark.integration
AGENT = """
import openai


def play(prompt, openai_url, key):
    client = openai.OpenAI(base_url=openai_url, api_key=key)
    said = [{"role": "user", "content": prompt}]
    try:
        for _ in range(2):
            answer = client.chat.completions.create(model="policy", messages=said, max_tokens=8)
            said += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Sure?"}]
    except openai.BadRequestError:  # no room for another turn
        pass
"""


@pytest.fixture(scope="module")
def teachers(task: Path) -> Iterator[dict[str, TeacherServer]]:
    """Two teachers that know nothing of each other."""
    tokenizer = AutoTokenizer.from_pretrained(task / "model")
    made = {}
    for seed, name in enumerate(("sums", "talk")):
        model = AutoModelForCausalLM.from_pretrained(task / "model").eval()
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
        made[name] = TeacherServer(model, lambda token: tokenizer.decode([token]))
    with made["sums"].serving(), made["talk"].serving():
        yield made


def rows_of(task: Path, out: Path, change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> Path:
    rows = parquet.read_table(task / "data/train.parquet").to_pylist()
    out.write_text("".join(json.dumps(change(i, row)) + "\n" for i, row in enumerate(rows)))
    return out


def served(teachers: dict[str, TeacherServer]) -> str:
    return "teachers={" + ", ".join(f"{name}: {{base_url: '{one.url}'}}" for name, one in teachers.items()) + "}"


@pytest.mark.prevents("a conversation is trained on the scores of another row's teacher")
def test_two_teachers_by_data_source_one_of_a_gateway_agent(
    task: Path, tmp_path: Path, overrides: list[str], teachers: dict[str, TeacherServer]
) -> None:
    """With updates in flight; the first request to one of them fails, which costs its trajectory alone."""

    def change(i: int, row: dict[str, Any]) -> dict[str, Any]:
        return row | ({"data_source": "sums"} if i % 2 else {"data_source": "talk", "agent_name": "mine"})

    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "agents.yaml").write_text("- name: mine\n  python: agent.play\n")
    failures = iter([web.Response(status=500)])
    teachers["sums"].trouble = lambda body: next(failures, None) if body["top_logprobs_num"] else None
    agentrl(
        "train",
        *overrides,
        f"data.train_files={rows_of(task, tmp_path / 'rows.jsonl', change)}",
        f"rollout.agent.agent_loop_config_path={tmp_path / 'agents.yaml'}",
        served(teachers),
        "distillation.topk=4",
        "trainer.max_staleness=1",
        "trainer.total_training_steps=2",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
        f"trainer.default_local_dir={tmp_path / 'run'}",
        cwd=tmp_path,
    )
    steps = [step for step in read_metrics(tmp_path / "run/metrics.jsonl") if "rollout/infra_drops" in step]
    drops, masked = (sum(step[f"rollout/{name}"] for step in steps) for name in ("infra_drops", "no_verdict_masked"))
    assert (drops, masked) == (1, 1)
    assert all({"distill/kl", "distill/distance", "distill/turn_1", "distill/agreement"} <= {*step} for step in steps)
    lines = [line for file in (tmp_path / "run/rollouts").glob("*.jsonl") for line in file.open()]
    scored = {"sums": 0, "talk": 0}
    for record in map(json.loads, lines):
        for sample in record["samples"]:
            scored[record["data_source"]] += agrees(sample["columns"], teachers[record["data_source"]].model)
    assert scored["sums"] > 2
    assert scored["talk"] > 2


def agrees(columns: dict[str, Any], teacher: Any) -> bool:
    """Whether a server has scored it; then all scores must be this teacher's."""
    if "teacher_logprobs" not in columns:
        return False
    ids = torch.tensor(columns["ids"])
    logprobs = teacher(ids[None]).logits[0].detach().float().log_softmax(-1)
    for place in range(1, len(ids)):
        if columns["mask"][place]:
            assert columns["teacher_logprobs"][place] == pytest.approx(logprobs[place - 1, ids[place]].item(), abs=1e-3)
            assert columns["teacher_choices"][place] == logprobs[place - 1].argmax().item()
    return True
