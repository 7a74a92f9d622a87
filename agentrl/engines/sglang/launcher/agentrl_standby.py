"""Starts SGLang's server, with the libraries of its scheduler imported beside those of its main process.

    python agentrl_standby.py FLAGS            # as python -m sglang.launch_server FLAGS

SGLang's main process imports for some 15 seconds, then spawns a scheduler for each GPU, which imports the same again.
Here a process for each is spawned at once, imports the libraries, and waits for what it shall run. SGLang's own modules
are not among them: they read variables that the main process sets, and start CUDA.

Invariants:
- such a process runs with its parent's environment and is in all else what a spawned one is: SGLang's child, with the
  exit code that SGLang sees;
- a process that shall start in another way (numactl, another preloaded library, a new variable that libraries may read)
  is spawned, as without this file.

Standard library only: SGLang's interpreter has no agentrl.
"""

import argparse
import multiprocessing
import os
import pickle
import runpy
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import context, process, spawn
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from unittest.mock import patch

LIBRARIES = (
    "torch",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed.tensor",
    "torchvision",
    "triton",
    "transformers",
    "transformers.modeling_utils",
    "transformers.masking_utils",
    "transformers.generation.candidate_generator",
    "openai.types.responses",
    "fastapi",
    "uvicorn",
    "scipy.spatial",
    "IPython",
    "aiohttp",
    "zmq",
    "numba",
    "PIL.Image",
    "compressed_tensors",
)
"""Modules that take SGLang's processes long to import; none makes a CUDA context."""
LATE = (
    *("CUTE_DSL_", "DG_JIT_", "FLASHINFER_", "NCCL_", "SGLANG_", "TILELANG_", "TLLM_", "TRTLLM_"),
    *("CUDA_CACHE_PATH", "CUDA_MODULE_LOADING", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_PTXAS_"),
    *("KMP_", "TF_CPP_", "TPU_"),
)
"""Variables, or their beginnings, that are read after the libraries are imported, or that these set themselves."""
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS", "8"
"""As SGLang sets it; CUDA may read it before."""
SAVER = "torch_memory_saver_hook_mode_preload"


def main() -> None:
    """Run SGLang's server in this process."""
    sys.path[0] = os.getcwd()  # as python -m does
    os.environ.setdefault(*CONNECTIONS)
    words = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    words.add_argument("--tp-size", type=int, default=1)
    with suppress(OSError):  # without them it starts, only later
        Standbys().install(words.parse_known_args()[0].tp_size)
    runpy.run_module("sglang.launch_server", run_name="__main__")


class Standbys:
    """Processes that import, and the pipes on which they wait."""

    def __init__(self) -> None:
        self.executable = spawn.get_executable()
        self.environment = dict(os.environ)
        self.preloaded = preloaded()
        self.waiting: list[tuple[Any, Connection]] = []

    def install(self, count: int) -> None:
        """Start so many, and take the place of spawning until all are used."""
        spawning = multiprocessing.get_context("spawn")
        with patch.dict(os.environ, {"LD_PRELOAD": ":".join(self.preloaded)} if self.preloaded else {}):
            for _ in range(count):
                theirs, ours = spawning.Pipe(duplex=False)
                standby = spawning.Process(target=stand_by, args=(theirs,), daemon=True)
                standby.start()
                theirs.close()
                self.waiting.append((standby, ours))
        plain = context.SpawnProcess._Popen
        setattr(context.SpawnProcess, "_Popen", staticmethod(lambda process: self.start(process, plain)))  # noqa: B010

    def start(self, wanted: Any, plain: Callable[[Any], Any]) -> Any:
        """Start a process: in one that waits where that is the same as spawning it."""
        if not self.waiting or not self._fits():
            return plain(wanted)
        standby, pipe = self.waiting[0]
        try:
            task = wanted.name, wanted.daemon, wanted._target, wanted._args, wanted._kwargs
            for message in [ForkingPickler.dumps(dict(os.environ)), ForkingPickler.dumps(task)]:
                pipe.send_bytes(message)
        # It is dead, or the arguments are such that only spawning passes on.
        except (OSError, RuntimeError, pickle.PicklingError) as error:
            say(f"a process is spawned as usual: {error!r}")
            return plain(wanted)
        self.waiting.pop(0)
        process._children.discard(standby)  # type: ignore[attr-defined]  # `wanted` takes its place
        return standby._popen

    def _fits(self) -> bool:
        """Whether a process that starts now would get an interpreter as those that wait have it."""
        now, before = os.environ, self.environment
        changed = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
        odd = {name for name in changed if not name.startswith(LATE)} - {"LD_PRELOAD"}
        odd |= set(filter(None, now.get("LD_PRELOAD", "").split(":"))) - set(self.preloaded)
        if odd or spawn.get_executable() != self.executable:
            say(f"a process is spawned as usual: {', '.join(sorted(odd)) or spawn.get_executable()} is new")
            return False
        return True


def stand_by(pipe: Connection) -> None:
    """Import the libraries, then run what is asked for; nothing where the main process ends first."""
    for name in LIBRARIES:
        with suppress(Exception):  # what is missing or broken here is imported, or not, by SGLang
            import_module(name)
    try:
        environment = pipe.recv()
        os.environ.clear()
        os.environ.update(environment)
        name, daemon, target, args, kwargs = pipe.recv()  # imports SGLang, which reads the environment
    except EOFError:
        return
    pipe.close()
    own = multiprocessing.current_process()
    own.name, own._config["daemon"] = name, daemon  # type: ignore[attr-defined]
    target(*args, **kwargs)


def preloaded() -> list[str]:
    """Libraries of LD_PRELOAD in the standbys: those that are there, and the one that saves memory for sleep."""
    given = list(filter(None, os.environ.get("LD_PRELOAD", "").split(":")))
    found = find_spec("torch_memory_saver") if "--enable-memory-saver" in sys.argv else None
    if found is None or found.origin is None:
        return given
    folder = Path(found.origin).parent.parent
    major = cuda_version().partition(".")[0]
    files = [*folder.glob(f"{SAVER}_cu{major}.*so"), *folder.glob(f"{SAVER}.*so")]
    return [*map(str, files[:1]), *given]


def cuda_version() -> str:
    """The version of CUDA that PyTorch is built with, without importing it."""
    found = find_spec("torch")
    named: dict[str, Any] = {}
    if found is not None and found.origin is not None:
        exec((Path(found.origin).parent / "version.py").read_text(), named)
    return str(named.get("cuda"))


def say(text: str) -> None:
    """A line in the server's log."""
    sys.stderr.write(f"agentrl: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
