"""docs/cluster/slurm.sh on SLURM itself (Debian: slurm-wlm), on two machines made of namespaces."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.test_resume import lines
from tests.machines import Machine, machines, need_root
from tests.waiting import wait_for

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).parents[2] / "docs" / "cluster" / "slurm.sh"
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=node1
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdTimeout=20
GresTypes=gpu
NodeName=node1 CPUs=2
NodeName=node2 CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Machine]]:
    """Two machines of a SLURM cluster."""
    need_root()
    if not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch"))):
        pytest.skip("needs slurm-wlm")
    (tmp_path / "state").mkdir()
    (tmp_path / "slurm.conf").write_text(CONFIGURATION.format(folder=tmp_path))
    (tmp_path / "munge.key").write_bytes(os.urandom(1024))
    (tmp_path / "munge.key").chmod(0o600)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={tmp_path}/munge.{name}" for option, name in files.items()]
    with machines(2) as made, ExitStack() as stack:
        started(stack, tmp_path, "munged", "--foreground", "--force", *options)
        started(stack, tmp_path, *made[0].words("slurmctld", "-D"))
        for node in made:
            started(stack, tmp_path, *node.words("slurmd", "-D", "-N", node.name))
        yield made


def started(stack: ExitStack, folder: Path, *words: str) -> None:
    """A daemon that `stack` ends."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    env = os.environ | {"SLURM_CONF": f"{folder}/slurm.conf"}
    stack.callback(subprocess.Popen(words, env=env, **quiet).kill)


def slurm(node: Machine, folder: Path, line: str) -> str:
    return node.sh(f"cd {folder} && export SLURM_CONF={folder}/slurm.conf && {line}")


def test_a_job_trains_and_is_resumed_when_a_node_dies(
    nodes: list[Machine], tmp_path: Path, overrides: list[str]
) -> None:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    run = tmp_path / "run"
    words = [*overrides, "trainer.device=cpu", f"trainer.default_local_dir={run}", "trainer.total_training_steps=12"]
    assert wait_for(lambda: slurm(nodes[0], tmp_path, "sinfo -h -t idle -o %D").strip() == "2", 60)
    options = "--nodes=2 --gpus-per-node=0 --cpus-per-task=2 --time=30"
    slurm(nodes[0], tmp_path, f"sbatch {options} {SCRIPT} {' '.join(words)}")
    assert wait_for(lambda: lines(run) >= 3, 400)
    nodes[1].power_off()
    with ExitStack() as stack:
        assert wait_for(lambda: slurm(nodes[0], tmp_path, "squeue -h -t PD").strip() != "", 200)
        started(stack, tmp_path, *nodes[1].words("slurmd", "-D", "-N", nodes[1].name))
        assert wait_for(lambda: slurm(nodes[0], tmp_path, "squeue -h").strip() == "", 600)
    said = (tmp_path / "slurm-1.out").read_text()
    assert said.count("0 problems") == 2, said
    assert "step 12/12" in said
