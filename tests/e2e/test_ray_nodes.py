"""Containers on the nodes of a cluster, placed by free CPUs."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.core.shares import VARIABLE
from tests.e2e.conftest import command, environment
from tests.raylets import TOKEN, Cluster
from tests.tasks.local_provider import ROOT
from tests.waiting import wait_for

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NODE = "AGENTRL_TEST_NODE"
SAID = re.compile(r"node=(\S+) worker=(\S+)$", re.MULTILINE)
"""Among all that a container's programs write."""


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Cluster]:
    """A node with two CPUs; a second one is on this machine, too."""
    made = Cluster(tmp_path)
    made.head(**{NODE: "head"})
    yield made
    made.close()


def run(cluster: Cluster, folder: Path, *settings: str, seconds: float = 1.0) -> "subprocess.Popen[str]":
    """A run whose containers say on which node they are, and which worker made them, so many seconds later."""
    (folder / "containers").mkdir()
    container = {"verify": f"echo node=${NODE} worker=${VARIABLE} >&2; sleep {seconds}; echo $((RANDOM % 2))"}
    row = {"prompt": "Write 5.", "extra_info": {"container": container}}
    (folder / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 24)
    files = [
        f"data.train_files={folder / 'rows.jsonl'}",
        "data.val_files=null",
        "trainer.device=cpu",
        "trainer.test_freq=-1",
        f"trainer.default_local_dir={folder / 'run'}",
        f"trainer.rollout_data_dir={folder / 'rollouts'}",
        "rollout.containers.provider=tests.tasks.local_provider:LocalProvider",
        f"ray_init.address={cluster.address}",
    ]
    env = environment() | TOKEN | {ROOT: str(folder / "containers")}
    words = command("train", *settings, *files)
    return subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def places(folder: Path, step: int) -> dict[str, str]:
    """Worker -> node, of all trajectories of a step."""
    dumps: list[Any] = [json.loads(line) for line in (folder / f"rollouts/{step}.jsonl").open()]
    said = [SAID.findall(dump["extra"]["task"]["output"]) for dump in dumps]
    assert [len(found) for found in said] == [1] * 16, dumps
    return {worker: node for ((node, worker),) in said}


def test_containers_run_on_the_nodes_with_free_cpus(head: Cluster, tmp_path: Path, overrides: list[str]) -> None:
    head.join(cpus=4, **{NODE: "second"})
    settings = ["trainer.nnodes=2", "rollout.agent.num_workers=3", "trainer.total_training_steps=2"]
    process = run(head, tmp_path, *overrides, *settings)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    for step in (1, 2):  # a rank of each node has a CPU: 1 and 3 are free
        assert sorted(places(tmp_path, step).values()) == ["head", "second", "second"]
    assert not list((tmp_path / "containers").iterdir())


def test_a_node_dies_with_containers_on_it(head: Cluster, tmp_path: Path, overrides: list[str]) -> None:
    head.join(cpus=4, **{NODE: "second"})
    settings = ["trainer.nnodes=2", "rollout.agent.num_workers=3", "trainer.total_training_steps=3"]
    process = run(head, tmp_path, *overrides, *settings, "trainer.save_freq=1", seconds=3.0)
    assert wait_for((tmp_path / "rollouts/1.jsonl").exists, 300)
    assert wait_for(lambda: len(list((tmp_path / "containers").iterdir())) >= 6, 300)
    os.killpg(head.nodes[1].pid, signal.SIGKILL)  # as a machine that loses its power
    head.join(cpus=4, **{NODE: "third"})
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "the run resumes by itself (restart 1 of 3)" in said
    assert "second" in places(tmp_path, 1).values()
    assert "second" not in places(tmp_path, 3).values()
