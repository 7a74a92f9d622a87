"""Starts SGLang's server with the imports of its processes side by side.

    python agentrl_fork_server.py FLAGS            # as python -m sglang.launch_server FLAGS

SGLang's main process imports for some 15 seconds, then spawns processes that import the same again. Here a fork server
imports the libraries meanwhile, and these processes are forked from it. SGLang's own modules are not among them: they
start CUDA, and read variables that the main process sets.

Invariants:
- a process is forked only from a fork server with one thread and without CUDA, and gets its parent's environment;
- a process that shall start in another way (numactl, another preloaded library, a new variable that libraries may
  read) is spawned, as without this file; so is each one where the fork server fails;
- the fork server ends with the main process, and passes on SIGQUIT, by which SGLang's processes report a failure.

Standard library only: SGLang's interpreter has no agentrl.
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import context, forkserver, popen_forkserver, spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

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
"""Modules that take SGLang's processes long to import; none starts CUDA."""
FOLDER = Path(__file__).resolve().parent
LATE = (
    *("CUDA_", "CUTE_DSL_", "DG_JIT_", "FLASHINFER_", "NCCL_", "SGLANG_", "TILELANG_", "TLLM_", "TRTLLM_"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_PTXAS_"),
    *("KMP_", "TF_CPP_", "TPU_"),
)
"""Variables, or their beginnings, that are read after the libraries are imported."""
SAVER = "torch_memory_saver_hook_mode_preload"
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run SGLang's server in this process."""
    sys.path[0] = os.getcwd()  # as python -m does
    if sys.platform == "linux":
        with suppress(OSError):  # plain spawning works everywhere
            ForkServer().install()
    runpy.run_module("sglang.launch_server", run_name="__main__")


class ForkServer:
    """Forks the processes that would be spawned."""

    def __init__(self) -> None:
        self.executable = spawn.get_executable()
        self.environment = dict(os.environ)
        self.preloaded = preloaded()
        self.sound: bool | None = None
        """Whether processes can be forked; None: not known yet."""

    def install(self) -> None:
        """Start the fork server, and take the place of spawning."""
        path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
        own = {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "LD_PRELOAD": ":".join(self.preloaded)}
        os.environ.update(own)
        try:
            multiprocessing.set_forkserver_preload([Path(__file__).stem])
            forkserver.ensure_running()
        finally:
            for name in own:
                os.environ.pop(name)
            os.environ.update(self.environment)
        plain = context.SpawnProcess._Popen
        setattr(context.SpawnProcess, "_Popen", staticmethod(lambda process: self.start(process, plain)))  # noqa: B010

    def start(self, process: Any, plain: Callable[[Any], Any]) -> Any:
        """Start a process: forked where that is the same as spawning it."""
        if not self._fits():
            return plain(process)
        if self.sound is None:
            self.sound = self._ask()
        if not self.sound:
            return plain(process)
        process._target, process._args = forked, (dict(os.environ), process._target, process._args)
        return popen_forkserver.Popen(process)

    def _fits(self) -> bool:
        """Whether a process that starts now would get an interpreter as the fork server has it."""
        now, before = os.environ, self.environment
        changed = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
        odd = {name for name in changed if not name.startswith(LATE)} - {"LD_PRELOAD"}
        odd |= set(filter(None, now.get("LD_PRELOAD", "").split(":"))) - set(self.preloaded)
        if odd or spawn.get_executable() != self.executable:
            say(f"a process is spawned, not forked: {', '.join(sorted(odd)) or spawn.get_executable()} is new")
            return False
        return True

    def _ask(self) -> bool:
        """Whether a fork comes out of a process with one thread and without CUDA; waits for the imports."""
        ours, theirs = multiprocessing.Pipe(duplex=False)
        try:
            asking = multiprocessing.get_context("forkserver").Process(target=report, args=(theirs,))
            asking.start()
            theirs.close()
            threads, cuda = ours.recv()
            asking.join()
        except (OSError, EOFError) as error:
            say(f"no fork server: {error!r}")
            return False
        say(f"fork server: threads {threads}, CUDA {'started' if cuda else 'not started'}")
        return threads == 1 and not cuda


def preloaded() -> list[str]:
    """Libraries of LD_PRELOAD in the fork server: those that are there, and the one that saves memory for sleep."""
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


def serve() -> None:
    """Become the fork server: import the libraries, end with the main process, pass on SIGQUIT."""
    sys.path.remove(str(FOLDER))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGQUIT, lambda *_: os.kill(os.getppid(), signal.SIGQUIT))
    start = time.monotonic()
    for name in LIBRARIES:
        with suppress(Exception):  # what is missing or broken here is imported, or not, by SGLang
            __import__(name)
    say(f"libraries imported in {time.monotonic() - start:.1f} s")


def forked(environment: dict[str, str], target: Callable[..., Any], args: tuple[Any, ...], **kwargs: Any) -> None:
    """Run what a spawned process would run."""
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    target(*args, **kwargs)


def report(answer: Connection) -> None:
    """Tell about the fork server: its threads, and whether CUDA is started in it."""
    torch = sys.modules.get("torch")
    threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
    answer.send((threads, torch is not None and torch.cuda.is_initialized()))


def say(text: str) -> None:
    """A line in the server's log."""
    sys.stderr.write(f"agentrl: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
elif __name__ == Path(__file__).stem:
    serve()
