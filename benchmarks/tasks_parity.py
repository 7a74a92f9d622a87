"""Compares rewards of task folders with Harbor's own: its agents `oracle` and `nop` against `agentrl tasks check`.

    python3.12 -m venv /tmp/harbor && /tmp/harbor/bin/pip install harbor
    python -m benchmarks.tasks_parity --harbor /tmp/harbor/bin/harbor [FOLDER]

Without FOLDER: the tasks that the tests use. Needs Docker with Compose 2. Harbor's results in OUT are used again.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from agentrl.tasks.harbor.check import TaskReport, check_tasks
from agentrl.tasks.harbor.folder import find_tasks
from agentrl.tasks.runner import TaskRunner
from tests.sandbox.docker.engine import Engine
from tests.tasks.harbor.unpack import have_image, unpack

AGENTS = {"oracle": "oracle", "nop": "noop"}
"""Harbor's agent -> the field of our report."""


def harbor_rewards(
    program: str, folder: Path, agent: str, out: Path, env: dict[str, str], jobs: int
) -> dict[str, float]:
    """Task -> reward of one of Harbor's agents, the mean of a task's numbers; -1 where Harbor gives none."""
    if not (out / agent / "result.json").exists():
        words = [program, "run", "-p", str(folder), "-a", agent, "-e", "docker", "-o", str(out)]
        subprocess.run([*words, "--job-name", agent, "-n", str(jobs), "-y", "-q"], env=env, check=True)
    return dict(_result(file) for file in sorted((out / agent).glob("*/result.json")))


def _result(file: Path) -> tuple[str, float]:
    parsed = json.loads(file.read_text())
    numbers = (parsed.get("verifier_result") or {}).get("rewards") or {"reward": -1.0}
    reward = numbers.get("reward", sum(numbers.values()) / len(numbers))
    return Path(parsed["config"]["task"]["path"]).name, reward


async def own_rewards(folder: Path, logs: Path, jobs: int) -> dict[str, TaskReport]:
    """Task -> report."""
    runner = TaskRunner()
    try:
        return {report.name: report async for report in check_tasks(find_tasks(folder), runner, logs, jobs=jobs)}
    finally:
        await runner.close()


def main() -> int:
    """Print both rewards of each task; 1 where they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--harbor", required=True, metavar="PROGRAM")
    parser.add_argument("--out", type=Path, default=Path(tempfile.mkdtemp(prefix="parity-")))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    engine = Engine()
    engine.have_compose()
    folder = args.folder
    if folder is None:
        have_image(engine, args.out / "image")
        folder = unpack("folders", args.out / "tasks")
        shutil.rmtree(folder / "no-network")  # for it Harbor pulls an image of a hub
    env = os.environ | engine.env | {"PATH": f"{Path(engine.program).parent}:{os.environ['PATH']}"}
    theirs = {agent: harbor_rewards(args.harbor, folder, agent, args.out, env, args.jobs) for agent in AGENTS}
    ours = asyncio.run(own_rewards(folder, args.out / "logs", args.jobs))
    return _print(ours, theirs)


def _print(ours: dict[str, TaskReport], theirs: dict[str, dict[str, float]]) -> int:
    equal = 0
    sys.stdout.write(f"{'task':<24}{'oracle':>8}{'harbor':>8}{'no-op':>8}{'harbor':>8}\n")
    for name, report in sorted(ours.items()):
        pairs = [(getattr(report, field), theirs[agent].get(name)) for agent, field in AGENTS.items()]
        equal += all(mine == other for mine, other in pairs)
        sys.stdout.write(f"{name:<24}" + "".join(f"{value!s:>8}" for pair in pairs for value in pair) + "\n")
    sys.stdout.write(f"equal: {equal} of {len(ours)} ({equal / len(ours):.0%})\n")
    return int(equal != len(ours))


if __name__ == "__main__":
    raise SystemExit(main())
