"""A server of `agentrl serve` with a tiny model, which measurements start, kill and start again."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def tiny_model(folder: Path) -> Path:
    """A model with random weights and a tokenizer of its demo's data."""
    if not (folder / "tiny").exists():
        program = [sys.executable, "-m", "agentrl"]
        for job in (
            ["data", "arithmetic", "--out", "data", "--demos", "100"],
            ["model", "tiny", "tiny", "--tokenizer-data", "data/sft.jsonl"],
        ):
            subprocess.run([*program, *job], cwd=folder, check=True, capture_output=True)
    return folder / "tiny"


class Server:
    """A process of `agentrl serve` at one address, whose state is in `folder`."""

    def __init__(self, model: Path, folder: Path, *settings: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{self.port}", folder / "server.log"
        folder.mkdir(parents=True, exist_ok=True)
        self.command = [sys.executable, "-m", "agentrl", "serve", "--port", str(self.port), f"model.path={model}"]
        self.command += ["trainer.device=cpu", "rollout.max_model_len=512", f"trainer.default_local_dir={folder}"]
        self.command += settings
        self.start()

    def start(self) -> None:
        """Start the process; `ready` tells when it listens."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=os.environ | {"COLUMNS": "200"})

    def ready(self, limit: float = 120) -> None:
        """Wait until it listens. Raises RuntimeError."""
        end = time.monotonic() + limit
        while time.monotonic() < end and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"the server does not start: see {self.log}")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """End it by a signal; returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait()

    def memory(self) -> float:
        """Resident MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def new_server(folder: Path, limit: float = 120) -> Iterator[Server]:
    """A server of a tiny model that listens within `limit` seconds; `folder` is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    server = Server(tiny_model(folder), folder / "served")
    try:
        server.ready(limit)
        yield server
    finally:
        server.kill()
