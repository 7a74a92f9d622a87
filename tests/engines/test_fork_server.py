"""The launcher of SGLang: its processes are forked from one with the libraries, or else spawned as ever."""

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

from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.sglang.flags import LAUNCHER, command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks with Linux's signals")

LIBRARIES = ast.literal_eval(LAUNCHER.read_text().partition("LIBRARIES = ")[2].partition('\n"""')[0])
SERVER = """
import json, multiprocessing, os, sys
ODD = {odd!r}

def scheduler(pipe, rank):
    import torch
    pipe.send((os.getppid(), rank, os.environ["SGLANG_RUN_ID"], "OPENBLAS_NUM_THREADS" in os.environ, torch.loaded_in))

if __name__ == "__main__":
    import torch
    os.environ["SGLANG_RUN_ID"] = "7"
    os.environ.update(ODD)
    multiprocessing.set_start_method("spawn", force=True)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    from sglang.scheduling import scheduler
    process = multiprocessing.Process(target=scheduler, args=(theirs,), kwargs=dict(rank=3))
    process.start()
    found = ours.recv()
    process.join()
    print(json.dumps([os.getpid(), sys.argv[1:], process.exitcode, *found]))
"""
TORCH = """
import os, threading, time
loaded_in = os.getpid()
class cuda:
    is_initialized = staticmethod(lambda: {cuda})
if {threads}:
    threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
"""


def launched(folder: Path, *, odd: dict[str, str] | None = None, cuda: bool = False, threads: bool = False) -> list:
    """The words of a server about its process: pid, flags, exit code, parent, rank, run, BLAS, library."""
    program, _, rest = SERVER.partition("def scheduler")
    body, _, main = rest.partition("if __name__")
    files = {
        "sglang/__init__.py": "",
        "sglang/scheduling.py": f"import os\n\ndef scheduler{body}",
        "sglang/launch_server.py": f"{program}if __name__{main}".replace("{odd!r}", repr(odd or {})),
        "torch.py": TORCH.replace("{cuda}", str(cuda)).replace("{threads}", str(threads)),
    }
    empty = {name.partition(".")[0] for name in LIBRARIES} - {"torch"}
    files |= {f"{name}.py": "" for name in empty} | {"compressed_tensors.py": "raise RuntimeError('broken')"}
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    words = command(SETTINGS, 1234)
    assert words[:2] == [sys.executable, str(LAUNCHER)]
    env = os.environ | {"PYTHONPATH": str(folder), "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SETTINGS = ServerSettings(sys.executable, "model", "cuda", "bfloat16", max_model_len=64, max_num_seqs=2)


def test_a_process_is_forked_with_its_parents_environment(tmp_path: Path) -> None:
    pid, flags, code, parent, rank, run, blas, library = launched(tmp_path)
    assert (flags[:4], code, rank, run, blas) == (["--host", "127.0.0.1", "--port", "1234"], 0, 3, "7", True)
    assert parent == library != pid  # of the fork server


@pytest.mark.parametrize("surprise", [{"odd": {"HF_HOME": "/x"}}, {"cuda": True}, {"threads": True}], ids=str)
def test_a_surprise_makes_it_spawn(tmp_path: Path, surprise: dict) -> None:
    pid, _, code, parent, *_, library = launched(tmp_path, **surprise)
    assert (parent, code) == (pid, 0)
    assert library not in (pid, parent)


def test_a_variable_that_is_read_late_is_no_surprise(tmp_path: Path) -> None:
    pid, *_, parent, _, _, _, _ = launched(tmp_path, odd={"TRITON_PTXAS_BLACKWELL_PATH": "/x"})
    assert parent != pid


def test_it_starts_servers_on_a_gpu() -> None:
    assert command(SETTINGS, 1)[1] == str(LAUNCHER)
    assert command(replace(SETTINGS, device="cpu"), 1)[1:3] == ["-m", "sglang.launch_server"]


def test_the_fork_server_ends_with_the_main_process(tmp_path: Path) -> None:
    launched(tmp_path)
    (tmp_path / "sglang/launch_server.py").write_text(
        "import os, sys, time\nfrom multiprocessing import forkserver\n"
        "print(forkserver._forkserver._forkserver_pid, flush=True)\ntime.sleep(60)\n"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    words = command(SETTINGS, 1)
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=env, cwd=tmp_path) as main:
        assert main.stdout is not None
        server = int(main.stdout.readline())
        os.kill(main.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while alive(server) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(server)


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
