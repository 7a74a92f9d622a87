"""The guides: their commands run, their loop drives a conversation, the metrics and keys they name exist."""

import re
import shlex
from pathlib import Path

import pytest

from agentrl.chat.ledger import Source
from agentrl.cli.main import COMMANDS, main
from agentrl.config.names import table
from agentrl.rollout.engine import Sampling
from agentrl.rollout.loops import loop_class
from agentrl.rollout.trajectory import Outcome, ToolCallRecord, Trajectory
from agentrl.tracking import rollout_metrics
from tests.rollout.scripted import environment, row, says

DOCS = Path(__file__).parents[2] / "docs"
EXPERIMENTS = ("train", "sft", "rollout")


def commands(page: str) -> list[list[str]]:
    """The words of every `agentrl` command in a page's shell blocks, without those that end in dots."""
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line) for line in lines if line.startswith("agentrl ")]
    return [line[1:] for line in words if line[-1] != "..."]


def composes(command: list[str]) -> object:
    """Exit code of showing what the command would run."""
    with pytest.raises(SystemExit) as ended:
        main([*command, "--cfg", "job"])
    return ended.value.code


def test_the_first_steps_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = commands("getting-started.md")
    assert [step[0] for step in steps] == ["data", "model", "sft", "rollout", "train"]
    for step in steps:
        assert (composes(step) if step[0] in EXPERIMENTS else main(step)) == 0
    assert "multi_turn" in capsys.readouterr().out


async def test_the_loop_shown_asks_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "agent-loops.md").read_text()
    (tmp_path / "revise.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    (tmp_path / "loops.yaml").write_text(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    env, _ = environment(says("It is 4 .", "It is 5 ."))
    trajectory = Trajectory(row("a:0"), "1/a:0/0", 0)
    await loop_class("revise", str(tmp_path / "loops.yaml"))(env).run(trajectory, Sampling(64))
    assert [m["role"] for m in trajectory.messages] == ["user", "assistant", "user", "assistant"]
    assert trajectory.ledgers[0].sources.count(Source.USER) > 0
    assert trajectory.turns == 2


def test_commands_named_exist() -> None:
    pages = [DOCS / name for name in ("from-verl.md", "troubleshooting.md", "getting-started.md", "agent-loops.md")]
    named = {name for page in pages for name in re.findall(r"`agentrl (\w+)", page.read_text())}
    assert named
    assert named <= set(COMMANDS)


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
