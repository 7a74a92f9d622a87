"""Rows of SWE sets in containers of Docker: untouched, changed wrongly, changed rightly, tampered with."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.config.schema import Data
from agentrl.config.schema.rollout import Containers
from agentrl.data.dataset import source_rows
from agentrl.tasks.runner import TaskRunner
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.sandbox.docker.engine import Engine
from tests.tasks.harbor.unpack import have_image
from tests.tasks.swe.published import ROWS, dockerfile

pytestmark = pytest.mark.docker

RIGHT = "sed -i 's/return a - b/return a + b/' calc.py"
WRONG = "sed -i 's/return a - b/return b - a/' calc.py"
TAMPERED = r"""
for tests in tests r2e_tests; do
  mkdir -p $tests; printf 'def test_add(): pass\ndef test_same(): pass\n' | tee $tests/test_calc.py > $tests/test_1.py
done
printf 'echo "=== short test summary info"; echo "PASSED x::test_add"; echo "PASSED x::test_same"\n' > run_tests.sh
echo "*.py -text" > .gitattributes; git config core.hooksPath .; git add -A; git commit -qam forged
forge() { while sleep 0.05; do for f in /tmp/*/log; do echo "PASSED tests/test_calc.py::test_add" >> $f; done; done; }
forge >/dev/null 2>&1 &
"""


@pytest.fixture
async def runner(docker_host: None) -> AsyncIterator[TaskRunner]:
    runner = TaskRunner(Containers())
    yield runner
    await runner.close()


@pytest.mark.parametrize("kind", ROWS)
async def test_rewards(kind: str, engine: Engine, runner: TaskRunner, tmp_path: Path) -> None:
    row = published(kind, engine, tmp_path)
    tries = [reward(runner, row, command) for command in (RIGHT, "true", WRONG, TAMPERED)]
    rewards = await asyncio.gather(*tries)
    assert rewards == [1, 0, 0, 0]


def published(kind: str, engine: Engine, folder: Path) -> Row:
    """The row of a set, whose image is there under its published name."""
    (folder / f"{kind}.jsonl").write_text(json.dumps(ROWS[kind]) + "\n")
    (row,) = source_rows(f"swe:{folder / kind}.jsonl", Data(), "data.train_files")
    (folder / "image").mkdir()
    (folder / "image/Dockerfile").write_text(dockerfile(have_image(engine, folder / "base"), kind))
    image = row.extra_info["task"]["container"]["image"]
    engine.docker("build", "-q", "-t", image, str(folder / "image"), timeout=120)
    return row


async def reward(runner: TaskRunner, row: Row, command: str) -> float | None:
    trajectory = Trajectory(row, "t", 0)

    async def agent(trajectory: Trajectory, own_timeout: float | None = None) -> None:
        done = await trajectory.container.exec(command, timeout=60)
        assert done.code == 0, done.output
        if row.extra_info["task"]["tests"]["hide"]:
            hidden = await trajectory.container.exec("grep -rl 'add(2, 3) == 5' . /tmp 2>/dev/null", timeout=60)
            assert hidden.stdout == ""
        trajectory.outcome = Outcome.OK

    await runner.run(trajectory, agent)
    assert trajectory.error is None
    return trajectory.reward
