"""The launcher of SGLang: its scheduler runs in a process that has the libraries already, or else a spawned one."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config.schema import Rollout
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.sglang.flags import LAUNCHER, command

pytestmark = pytest.mark.integration

LIBRARIES = ast.literal_eval(LAUNCHER.read_text().partition("LIBRARIES = ")[2].partition('\n"""')[0])
SERVER = """
import json, multiprocessing, os, sys
ODD = {odd!r}

def scheduler(pipe, rank):
    import torch
    own = multiprocessing.current_process()
    pipe.send((os.getppid(), rank, os.environ["SGLANG_RUN_ID"], own.name, own.daemon, torch.imported_for))
    sys.exit(5)

if __name__ == "__main__":
    os.environ["SGLANG_RUN_ID"] = "7"
    os.environ.update(ODD)
    multiprocessing.set_start_method("spawn", force=True)
    from sglang.scheduling import scheduler
    words = []
    for rank in range(2):
        ours, theirs = multiprocessing.Pipe(duplex=False)
        given = dict(args=(theirs,), kwargs=dict(rank=rank), name=f"rank{{rank}}")
        process = multiprocessing.Process(target=scheduler, **given)
        process.start()
        theirs.close()
        found = ours.recv()
        process.join()
        words.append([process.exitcode, process in multiprocessing.active_children(), *found])
    print(json.dumps([os.getpid(), sys.argv[1:], *words]))
"""
TORCH = "import os\nimported_for = os.environ.get('SGLANG_RUN_ID')\n"
SETTINGS = ServerSettings(sys.executable, "model", "cuda", "bfloat16", max_model_len=64, max_num_seqs=2)


def launched(folder: Path, *, ranks: int = 1, odd: dict[str, str] | None = None) -> list:
    """The words of a server: its pid, its flags, and for two processes: exit code, whether active, parent, rank, run,
    name, whether a daemon, the run for which its libraries were imported: none yet in one that waited."""
    write_server(folder, SERVER.replace("{odd!r}", repr(odd or {})).replace("{{rank}}", "{rank}"))
    words = command(replace(SETTINGS, rollout=Rollout(tensor_model_parallel_size=ranks)), 1234)
    assert words[:2] == [sys.executable, str(LAUNCHER)]
    env = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_server(folder: Path, program: str) -> None:
    """A package sglang, and the libraries, of which one is broken."""
    body = program.partition("def scheduler")[2].partition("if __name__")[0]
    files = {
        "sglang/__init__.py": "",
        "sglang/scheduling.py": f"import multiprocessing, os, sys\n\ndef scheduler{body}",
        "sglang/launch_server.py": program,
        "torch.py": TORCH,
    }
    files |= {
        f"{name.partition('.')[0]}.py": "" for name in LIBRARIES if not name.startswith("torch.") | (name == "torch")
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "compressed_tensors.py").write_text("raise RuntimeError('broken')")


def test_a_process_that_waited_is_like_a_spawned_one(tmp_path: Path) -> None:
    pid, flags, first, second = launched(tmp_path)
    assert flags[:4] == ["--host", "127.0.0.1", "--port", "1234"]
    assert first == [5, False, pid, 0, "7", "rank0", False, None]
    assert second == [5, False, pid, 1, "7", "rank1", False, "7"]  # there was one for one GPU


def test_there_is_one_for_each_gpu(tmp_path: Path) -> None:
    _, _, first, second = launched(tmp_path, ranks=2)
    assert first[-1] is second[-1] is None


@pytest.mark.parametrize("name", ["HF_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS"])
def test_a_variable_that_libraries_may_have_read_makes_it_spawn(tmp_path: Path, name: str) -> None:
    pid, _, first, _ = launched(tmp_path, odd={name: "1"})
    assert first == [5, False, pid, 0, "7", "rank0", False, "7"]


def test_a_variable_that_is_read_late_does_not(tmp_path: Path) -> None:
    late = {"TRITON_PTXAS_BLACKWELL_PATH": "/x", "CUDA_DEVICE_MAX_CONNECTIONS": "8", "NCCL_CUMEM_ENABLE": "0"}
    assert launched(tmp_path, odd=late)[2][-1] is None


def test_arguments_that_only_spawning_passes_on(tmp_path: Path) -> None:
    """A lock: the process is spawned."""
    program = SERVER.replace("def scheduler(pipe, rank)", "def scheduler(pipe, rank, lock)")
    program = program.replace("words = []", "words, lock = [], multiprocessing.Lock()")
    program = program.replace("dict(rank=rank)", "dict(rank=rank, lock=lock)")
    write_server(tmp_path, program.replace("{odd!r}", "{}").replace("{{rank}}", "{rank}"))
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command(SETTINGS, 1), capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60)
    assert json.loads(done.stdout)[2][-1] == "7"
    assert "spawned" in done.stderr


@pytest.mark.parametrize("end", ["killed", "refused"])
def test_one_that_waits_ends_with_the_main_process(tmp_path: Path, end: str) -> None:
    write_server(tmp_path, "")
    last = "time.sleep(60)" if end == "killed" else "sys.exit(2)"
    (tmp_path / "sglang/launch_server.py").write_text(
        f"import multiprocessing, sys, time\nprint(multiprocessing.active_children()[0].pid, flush=True)\n{last}\n"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command(SETTINGS, 1), stdout=subprocess.PIPE, env=env, cwd=tmp_path) as main:
        assert main.stdout is not None
        standby = int(main.stdout.readline())
        if end == "killed":
            os.kill(main.pid, signal.SIGKILL)
        assert main.wait(60) == (2 if end == "refused" else -signal.SIGKILL)
    deadline = time.monotonic() + 60
    while alive(standby) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(standby)


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
