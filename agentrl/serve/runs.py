"""One model and its commands, in the order of their sequence numbers.

Invariants:
- a command is on the disk before its client knows of it, and runs once, after all before it;
- a repeated command has the answer of the first; a refused one counts as run;
- after a restart the model is that of the last snapshot and of the commands after it.
"""

import asyncio
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from agentrl.http.refusals import Refused
from agentrl.serve.contract import AdapterShape
from agentrl.serve.wire import JSON, PROTOBUF
from agentrl.tracking.loggers import METRICS_FILE, FileLogger

Answer = dict[str, Any] | bytes
"""JSON, or a protobuf message."""

SNAPSHOT_STEPS = 10
"""Optimizer steps after which a snapshot is taken."""
ANSWERS = 1000
"""Answers that a model has for clients that ask again."""
FORMS = {"json": JSON, "pb": PROTOBUF}


@dataclass
class Command:
    """A request that reads or changes a model."""

    seq: int
    path: str
    form: str
    """Content type of its body, and of the answer to a pass."""
    body: bytes = b""
    answer: "asyncio.Future[Answer]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def failed(self) -> bool:
        """Whether its answer is an error."""
        return self.answer.done() and isinstance(answer := self.answer.result(), dict) and "error" in answer


class TrainingRun:
    """A model that a session trains, in a folder with `run.json`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.id = folder, folder / "commands", folder.name
        self.facts = orjson.loads((folder / "run.json").read_bytes())
        self.shape = AdapterShape(**self.facts["shape"])
        self.alive = self.closing = False
        """Whether the trainer has the model; whether its session has ended."""
        self.snapshot = max((folder / "snapshots").glob("*.*"), key=lambda path: int(path.stem), default=None)
        """Folder of the last snapshot: COMMAND.STEPS."""
        command, _, steps = self.snapshot.name.partition(".") if self.snapshot else ("-1", "", "0")
        self.next, self.steps = int(command) + 1, int(steps)
        """Number of the next command, and optimizer steps so far."""
        self.since = time.monotonic()
        """When the last command ran."""
        self.metrics = FileLogger(folder / METRICS_FILE, resume_step=self.steps)
        self.losses: dict[str, float] = {}
        """Metrics since the last optimizer step."""
        self._lock, self.commands = asyncio.Lock(), dict[int, Command]()
        for file in sorted(self.log.glob("[0-9]*.*.*")):
            self._read(file)

    def _read(self, file: Path) -> None:
        number, path, form = file.name.split(".")
        command = self.commands.setdefault(int(number), Command(int(number), path, FORMS[form]))
        if path == "answer":
            command.answer.set_result(file.read_bytes() if form == "pb" else orjson.loads(file.read_bytes()))
        else:
            command.path, command.form, command.body = path, FORMS[form], file.read_bytes()

    @property
    def ready(self) -> Command | None:
        """The next command, if it has come."""
        return self.commands.get(self.next)

    @property
    def pending(self) -> list[Command]:
        """Commands without an answer."""
        return [command for command in self.commands.values() if not command.answer.done()]

    @property
    def wants_snapshot(self) -> bool:
        """Whether a start would have much to run again, or something that may be gone."""
        taken = int(self.snapshot.suffix[1:]) if self.snapshot else 0
        last = self.commands[self.next - 1]
        return (last.path == "load_weights" and not last.failed) or self.steps - taken >= SNAPSHOT_STEPS

    async def submit(self, seq: int | None, path: str, form: str, body: bytes) -> Command:
        """Write a command to the log; a repeated one is the one before. Raises Refused."""
        async with self._lock:
            seq = max(self.commands, default=self.next - 1) + 1 if seq is None else seq
            if seq not in self.commands:
                if seq < self.next:
                    raise Refused(f"the answer to command {seq} is no longer there", "lost")
                command = Command(seq, path, form, body)
                await asyncio.to_thread(self._write, command, path, body)
                self.commands[seq] = command
            return self.commands[seq]

    def ran(self, command: Command, answer: Answer) -> None:
        """Take the answer to a command; the next one may run."""
        if not command.answer.done():
            self._write(command, "answer", answer)
            command.answer.set_result(answer)
        self.steps += command.path == "optim_step" and not command.failed
        command.body, self.next, self.since = b"", command.seq + 1, time.monotonic()

    def _write(self, command: Command, name: str, body: Answer) -> None:
        form = "pb" if isinstance(body, bytes) and command.form == PROTOBUF else "json"
        write_synced(
            self.log / f"{command.seq:012}.{name}.{form}", orjson.dumps(body) if isinstance(body, dict) else body
        )

    def snapshot_taken(self, snapshot: Path) -> None:
        """Forget what the snapshot of all commands so far has."""
        old, self.snapshot = self.snapshot, snapshot
        last = sorted(self.commands)[-ANSWERS:]
        for file in self.log.iterdir():
            number, name = file.name.split(".")[:2]
            if int(number) < self.next and (name != "answer" or int(number) not in last):
                file.unlink()
        self.commands = {seq: command for seq, command in self.commands.items() if seq >= self.next or seq in last}
        if old is not None:
            shutil.rmtree(old)

    def close(self, reason: str) -> None:
        """Answer the commands that will not run, and forget all but checkpoints and metrics."""
        for command in self.pending:
            command.answer.set_result({"error": reason, "category": "user"})
        self.metrics.close()
        for name in ("snapshots", "sampling", "commands"):
            shutil.rmtree(self.folder / name, ignore_errors=True)


def write_synced(path: Path, body: bytes) -> None:
    """Replace a file by `body`, which is on the disk when this returns, or change nothing. Raises OSError."""
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
