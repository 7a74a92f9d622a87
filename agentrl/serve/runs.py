"""One model and its commands, in the order of their numbers, and its checkpoints.

Invariants:
- a command is on the disk before its client knows of it, and runs once, after all before it;
- a repeated command has the answer of the first; a refused one counts as run;
- after a restart the model is that of the last snapshot and the commands after it;
- a checkpoint is listed once it is whole.
"""

import asyncio
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from dataclasses import field as member
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from agentrl.core.errors import UserError
from agentrl.core.outputs import write_atomic
from agentrl.http.refusals import Refused
from agentrl.http.serving import parse
from agentrl.serve.contract import Adam, AdapterShape
from agentrl.serve.wire import Answer, Body, field, pass_input, pass_message
from agentrl.tracking.loggers import METRICS_FILE, FileLogger

if TYPE_CHECKING:
    from agentrl.serve.models import Models  # which imports torch

SNAPSHOT_STEPS = 10
"""Optimizer steps after which a snapshot is taken."""
ANSWERS = 1000
"""Commands whose answers can be fetched again."""
LONGEST_TTL = 10 * 365 * 86400
"""Seconds, as in Thinking Machines' service."""
UNNAMED = 16
"""Unnamed weights of a model that are there: those that were sampled from last."""
PATH = re.compile(r"tinker://(s-\w+:train:\d+)/(weights|sampler_weights|external_weights)/(\w[\w.-]{0,99})", re.ASCII)
INFO, NOTE = "info.json", "checkpoint.json"
"""What clients are told of a training run, and of a checkpoint: it is whole once it has the file."""
TYPES = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
"""Kinds of checkpoints, in the protocol's words."""
PARTS = {"attention": "train_attn", "mlp": "train_mlp", "unembed": "train_unembed"}


@dataclass
class Command:
    """A request that reads or changes a model."""

    seq: int
    path: str
    body: bytes = b""
    answer: "asyncio.Future[Answer]" = member(default_factory=lambda: asyncio.get_running_loop().create_future())
    begun: bool = False
    """Whether its pass has begun."""

    @property
    def failed(self) -> bool:
        """Whether its answer is an error."""
        return self.answer.done() and isinstance(answer := self.answer.result(), dict) and "error" in answer


class TrainingRun:
    """A model that a session trains, in a folder with `info.json`."""

    def __init__(self, folder: Path, base: dict[str, Any], trainer: "Models") -> None:
        """`base`: facts that all models of the server share. Raises UserError for a model with others."""
        self.folder, self.id, self.base, self.trainer = folder, folder.name, base, trainer
        self.info = facts_of(folder, base)
        """Its adapter and owner, in the protocol's words."""
        found = (folder / "snapshots").glob("[0-9]*")
        self.snapshot = max(found, key=lambda path: int(path.stem), default=folder / "snapshots" / "-1.0")
        """Folder of the last snapshot: COMMAND.STEPS."""
        self.next, self.steps = int(self.snapshot.stem) + 1, int(self.snapshot.suffix[1:])
        """Number of the next command, and optimizer steps so far."""
        self.alive = self.closing = False
        """Whether the trainer has the model; whether it ends."""
        self.used = 0.0
        """Seconds of the trainer's time."""
        self._metrics, self._loss = FileLogger(folder / METRICS_FILE, resume_step=self.steps), 0.0
        self._lock, self.commands = asyncio.Lock(), dict[int, Command]()
        for file in sorted((folder / "commands").glob("[0-9]*")):
            seq, path, raw = int(file.stem), file.suffix[1:], file.read_bytes().decode().encode("latin-1")
            command = self.commands.setdefault(seq, Command(seq, path))
            if path == "answer":
                command.answer.set_result(orjson.loads(raw) if raw.startswith(b"{") else raw)
            else:
                command.path, command.body = path, raw

    @property
    def ready(self) -> Command | None:
        """The next command, if it has come."""
        return self.commands.get(self.next)

    @property
    def pending(self) -> list[Command]:
        """Commands without an answer."""
        return [command for command in self.commands.values() if not command.answer.done()]

    async def submit(self, seq: int | None, path: str, body: bytes) -> Command:
        """Write a command to the log; a repeated one is the one before. Raises Refused."""
        async with self._lock:
            seq = max(self.commands, default=self.next - 1) + 1 if seq is None else seq
            if seq not in self.commands:
                if seq < self.next:
                    raise Refused(f"the answer to command {seq} is no longer there", "lost")
                await asyncio.to_thread(self._write, seq, path, body)
                self.commands[seq] = Command(seq, path, body)
            return self.commands[seq]

    def _write(self, seq: int, name: str, raw: bytes) -> None:
        write_atomic(self.folder / "commands" / f"{seq:020}.{name}", [raw.decode("latin-1")])

    def ran(self, command: Command, answer: Answer) -> None:
        """Take the answer to the next command."""
        if not command.answer.done():
            self._write(command.seq, "answer", answer if isinstance(answer, bytes) else orjson.dumps(answer))
            command.answer.set_result(answer)
        self.steps += command.path == "optim_step" and not command.failed
        command.body, self.next = b"", command.seq + 1

    def do(self, command: Command) -> Answer | None:
        """Have the trainer carry out a command, or one micro-batch of it; None: there are more. Raises Refused,
        UserError."""
        if not self.alive:
            parts = {ours: self.info[theirs] for ours, theirs in PARTS.items()}
            self.trainer.remove(self.id)  # of a start that failed
            self.trainer.create(self.id, AdapterShape(self.info["lora_rank"], self.info["seed"] or 0, **parts))
            if self.snapshot.exists():
                self.trainer.load(self.id, self.snapshot, optimizer=True)
            self.alive = True
        self.closing |= command.path == "unload_model"
        answer: Answer | None = getattr(self, f"_{command.path}", lambda _: {})(command)
        return {"type": command.path, "model_id": self.id} | answer if isinstance(answer, dict) else answer

    def take_snapshot(self) -> None:
        """Where a start would have much to run again: write the model, and forget the commands so far."""
        loaded = (last := self.commands[self.next - 1]).path == "load_weights" and not last.failed
        if not loaded and self.steps - int(self.snapshot.suffix[1:]) < SNAPSHOT_STEPS:
            return
        old = self.snapshot
        self.snapshot = self._draft(self.trainer.save).replace(old.with_name(f"{self.next - 1}.{self.steps}"))
        for file in (self.folder / "commands").glob("[0-9]*"):
            if int(file.stem) < self.next - ANSWERS * (file.suffix == ".answer"):
                file.unlink()
        self.commands = {seq: command for seq, command in self.commands.items() if seq >= self.next - ANSWERS}
        shutil.rmtree(old, ignore_errors=True)

    def _draft(self, write: Callable[[str, Path], None]) -> Path:
        """A folder that has the model as `write` writes it; a failed one is written again."""
        draft = self.folder / "sampling" / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        write(self.id, draft)
        return draft

    def close(self) -> None:
        """Answer the commands that will not run, and forget all but checkpoints and metrics."""
        for command in self.pending:
            command.answer.set_result({"error": "the session has ended", "category": "user"})
        self._metrics.close()
        for name in ("snapshots", "sampling", "commands"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _forward_backward(self, command: Command) -> Answer | None:
        if not command.begun:
            data, loss, settings, forward_only = pass_input(command.body, self.trainer.processor)
            self.trainer.begin(self.id, data, loss, settings, backward=not forward_only)
            command.begun = True
        if (result := self.trainer.proceed(self.id)) is None:
            return None
        self._loss = result.metrics["loss:sum"]
        return pass_message(result)

    _forward = _forward_backward

    def _refused(self, command: Command) -> Answer:
        raise Refused(command.body.decode())

    def _optim_step(self, command: Command) -> Answer:
        given = field(parse(command.body), "adam_params", dict)
        # NaN is null in JSON, and no default stands for it.
        adam = Adam(**{name: field(given, name, float) for name in asdict(Adam()) if name in given})
        metrics = self.trainer.optim_step(self.id, adam)
        self._metrics.log(self.steps + 1, {"actor/loss": self._loss, "actor/lr": adam.learning_rate} | metrics)
        # The SDK takes no null, which NaN would become.
        return {"metrics": {name: value for name, value in metrics.items() if isfinite(value)}}

    def _load_weights(self, command: Command) -> Answer:
        body = parse(command.body)
        folder = folder_of(self.folder.parent, field(body, "path", str), self.info["model_owner"])
        facts_of(folder.parents[1], self.base)
        self.trainer.load(self.id, folder, optimizer=field(body, "optimizer", bool, False))
        return {"path": body["path"]}

    def _save_weights(self, command: Command) -> Answer:
        return self._checkpoint("weights", command, self.trainer.save)

    def _save_weights_for_sampler(self, command: Command) -> Answer:
        if parse(command.body).get("path") is not None:
            return self._checkpoint("sampler_weights", command, self.trainer.export)
        folder, session = self.folder / "sampling", self.id.partition(":")[0]
        shutil.rmtree(folder / str(command.seq), ignore_errors=True)
        self._draft(self.trainer.export).replace(folder / str(command.seq))
        for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-UNNAMED]:
            shutil.rmtree(old)
        return {"sampling_session_id": f"{session}:sample:{command.seq}~{self.id}~sampling~{command.seq}"}

    def _save_weights_external(self, command: Command) -> Answer:
        if parse(command.body).get("age_encryption_recipients"):
            raise UserError("age_encryption_recipients: encryption is not served; leave it out")
        return self._checkpoint("external_weights", command, self.trainer.export)

    def _checkpoint(self, kind: str, command: Command, write: Callable[[str, Path], None]) -> Answer:
        body = parse(command.body)
        path = f"tinker://{self.id}/{kind}/{field(body, 'path', str)}"
        if not PATH.fullmatch(path):
            raise UserError(f"{path[:200]}: name a checkpoint with letters, digits, and . _ -")
        folder = self.folder / kind / body["path"]
        for other in self.folder.parent.glob(f"s-{self.info['model_owner']}_*/*weights/*"):
            is_there(other)  # or deletes it
        here = (folder / NOTE).exists() and facts_in(folder / NOTE)["seq"] != command.seq
        if here and not body.get("overwrite"):
            raise UserError(f"{path} is there already: choose another name, or pass overwrite=True")
        own = {"checkpoint_type": TYPES[kind], "time": time.time()} | expiry(body)
        note = {"checkpoint_id": f"{kind}/{folder.name}", "tinker_path": path, "seq": command.seq} | own
        draft = self._draft(write)
        write_atomic(draft / NOTE, [orjson.dumps(note).decode()])
        delete_checkpoint(folder)
        draft.replace(folder)
        return {"path": path}


def facts_in(file: Path) -> dict[str, Any]:
    """The facts in a file about a training run or a checkpoint, in the protocol's words. Raises Refused."""
    if not file.exists():
        raise Refused(f"{'/'.join(file.parts[-4:-1])[:200]}: no such training run or checkpoint", "missing")
    facts: dict[str, Any] = orjson.loads(file.read_bytes())
    return facts


def facts_of(run: Path, base: dict[str, Any]) -> dict[str, Any]:
    """The facts about a training run, whose base is the served one. Raises Refused, UserError."""
    info = facts_in(run / INFO)
    for name, own in base.items():
        if (needed := info.get(name, own)) != own:
            why = f"{run.name} needs {name}={needed}, and the server has {own}"
            raise UserError(f"{why}: serve it as before, or pass another trainer.default_local_dir")
    return info


def folder_of(runs: Path, path: str, owner: str) -> Path:
    """The folder of a checkpoint of `owner`, whose name begins those of its runs. Raises Refused."""
    found = PATH.fullmatch(path)
    folder = runs.joinpath(*found.groups()) if found else runs
    if not folder.parents[1].name.startswith(f"s-{owner}_") or not is_there(folder):
        raise Refused(f"{path[:200]}: no such checkpoint; it was deleted, or belongs to another key", "missing")
    return folder


def is_there(folder: Path) -> bool:
    """Whether a checkpoint is whole; one whose time to live is over is deleted."""
    if (note := folder / NOTE).exists() and (facts_in(note).get("expires_at") or inf) < time.time():
        delete_checkpoint(folder)
    return note.exists()


def expiry(body: Body) -> dict[str, float | None]:
    """The time at which a checkpoint is deleted, in the protocol's words."""
    ttl = field(body, "ttl_seconds", int, None)
    return {"expires_at": None if ttl is None else time.time() + min(max(ttl, 0), LONGEST_TTL)}


def delete_checkpoint(folder: Path) -> None:
    """Delete a checkpoint, which is no longer listed then, whatever happens."""
    (folder / NOTE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
