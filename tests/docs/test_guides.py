"""The guides: their loop drives a conversation, the metrics and keys they name exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config.names import table
from agentrl.engines.engine import Sampling
from agentrl.rollout.loops import loop_class
from agentrl.tracking.metrics import rollout_metrics
from agentrl.trajectory.ledger import Source
from agentrl.trajectory.trajectory import Outcome, ToolCallRecord, Trajectory
from tests.docs.pages import section
from tests.rollout.scripted import environment, row, says

DOCS = Path(__file__).parents[2] / "docs"


async def test_the_loop_shown_asks_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [block for block in section("agents.md#an-agent-loop") if block.file]
    assert [block.file for block in files] == ["revise.py", "loops.yaml"]
    for block in files:
        (tmp_path / str(block.file)).write_text(block.text)
    monkeypatch.syspath_prepend(str(tmp_path))
    env, _ = environment(says("It is 4 .", "It is 5 ."))
    trajectory = Trajectory(row("a:0"), "1/a:0/0", 0)
    await loop_class("revise", str(tmp_path / "loops.yaml"))(env).run(trajectory, Sampling(64))
    assert [m["role"] for m in trajectory.messages] == ["user", "assistant", "user", "assistant"]
    assert trajectory.ledgers[0].sources.count(Source.USER) > 0
    assert trajectory.turns == 2


async def test_metrics_named_exist() -> None:
    trajectories = []
    for sample in range(2):
        env, _ = environment(says("It is 4 ."))
        trajectory = Trajectory(row("a:0"), f"1/a:0/{sample}", sample, reward=1.0)
        await loop_class("single_turn")(env).run(trajectory, Sampling(64))
        trajectory.tool_calls.append(ToolCallRecord(0, "add", {}, "4", Outcome.OK, 0.1))
        trajectories.append(trajectory)
    known = set(rollout_metrics(trajectories))
    named = set(re.findall(r"`((?:rollout|tools)/\w+)`", (DOCS / "troubleshooting.md").read_text()))
    assert named
    assert named <= known


def test_keys_of_verl_named_lead_somewhere() -> None:
    text = (DOCS / "from-verl.md").read_text()
    assert {"reward_model", "custom_reward_function"} <= set(re.findall(r"`(\w+)\.\*`", text)) & set(table())


def test_lines_quoted_are_said() -> None:
    """Between the dots of a quoted refusal stand words that the code has."""
    table = (DOCS / "troubleshooting.md").read_text().partition("## It will not start")[2].partition("\n## ")[0]
    quoted = [line for row in table.splitlines()[4:] for line in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert len(quoted) > 15
    folders = (DOCS.parent / "agentrl", DOCS.parent / "sandbox" / "agentrl_sandbox")
    texts = [text for folder in folders for file in folder.rglob("*.py") for text in said(file)]
    for line in quoted:
        for part in filter(None, (part.strip(" :;") for part in line.split("..."))):
            assert any(part in text for text in texts), part


def said(file: Path) -> Iterator[str]:
    """Texts of a module; what is filled in stands as {}."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_files_named_are_there() -> None:
    page = (DOCS / "architecture.md").read_text()
    named = re.findall(r"`((?:agentrl|tests|tools|interactions|configs|sandbox|benchmarks)/[\w/.]*)`", page)
    rooms = {f"agentrl/{room.parent.name}/" for room in (DOCS.parent / "agentrl").glob("*/__init__.py")}
    assert rooms <= set(named)
    assert [file for file in named if not (DOCS.parent / file).exists()] == []


def test_the_step_shown_is_the_step() -> None:
    shown = re.findall(r"```text\n(.*?)```", (DOCS / "architecture.md").read_text(), re.DOTALL)[0]
    lines = [line.strip() for line in (DOCS.parent / "agentrl/train.py").read_text().splitlines()]
    start = lines.index(shown.splitlines()[0].strip())
    assert lines[start : start + 7] == [line.strip() for line in shown.splitlines()]
