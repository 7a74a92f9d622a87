"""The commands of a model, carried out by the trainer, and the checkpoints that they write.

Invariants: called by the trainer's thread alone; a checkpoint is listed once it is whole.
"""

import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from agentrl.core.errors import UserError
from agentrl.gateway.bodies import parse
from agentrl.http.refusals import Refused
from agentrl.serve.contract import Adam, Trainer
from agentrl.serve.runs import Answer, Command, TrainingRun, write_synced
from agentrl.serve.wire import field, pass_answer, read_pass

PATH = re.compile(r"tinker://([\w:-]+)/(weights|sampler_weights)/([A-Za-z0-9][\w.-]{0,99})", re.ASCII)
KINDS = {"weights": "training", "sampler_weights": "sampler"}
SAMPLERS = 16
"""Unnamed weights of a model that are kept: those that were sampled from last."""
Body = Mapping[str, Any]


def checkpoint_folder(runs: Path, path: str, owner: str) -> Path:
    """The folder of a checkpoint of `owner`. Raises Refused."""
    found = PATH.fullmatch(path)
    folder = runs.joinpath(*found.groups()) if found else None
    if folder is None or not note_of(folder).is_file() or facts_of(folder.parents[1])["owner"] != owner:
        raise Refused(
            f"{path[:200]}: no such checkpoint; it was deleted, has expired, or belongs to another key", "missing"
        )
    return folder


def note_of(folder: Path) -> Path:
    """The file that says that a checkpoint is whole."""
    return folder.with_name(f"{folder.name}.json")


def facts_of(folder: Path) -> dict[str, Any]:
    """Owner, shape and times of a training run."""
    facts: dict[str, Any] = orjson.loads((folder / "run.json").read_bytes())
    return facts


def delete_checkpoint(folder: Path) -> None:
    """Delete a checkpoint; one that is deleted in part is not listed."""
    note_of(folder).unlink()
    shutil.rmtree(folder)


def stamp(seconds: int = 0) -> str:
    """The time in so many seconds."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def checkpoints(run: Path) -> list[dict[str, Any]]:
    """The checkpoints of a training run, in the protocol's words."""
    return [orjson.loads(file.read_bytes()) for kind in KINDS for file in (run / kind).glob("*.json") if file.is_file()]


def set_ttl(folder: Path, seconds: int | None) -> dict[str, Any]:
    """Have a checkpoint end in so many seconds; None: never."""
    note = orjson.loads(note_of(folder).read_bytes()) | {"expires_at": stamp(seconds) if seconds else None}
    write_synced(note_of(folder), orjson.dumps(note))
    return dict(note)


def delete_expired(runs: Path) -> None:
    """Delete the checkpoints whose time is over."""
    for note in (note for run in runs.iterdir() for note in checkpoints(run)):
        if note["expires_at"] and note["expires_at"] < stamp():
            delete_checkpoint(runs.joinpath(*PATH.fullmatch(note["tinker_path"]).groups()))


class Operations:
    """Carries out commands."""

    def __init__(self, trainer: Trainer, runs: Path) -> None:
        self.trainer, self.runs = trainer, runs
        self._do = {
            "create_model": lambda run, command, body: {"type": "create_model", "model_id": run.id},
            "forward": self._pass,
            "forward_backward": self._pass,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "save_weights_for_sampler": self._save_for_sampler,
            "load_weights": self._load,
            "refused": lambda run, command, body: {"error": "the command was refused", "category": "user"},
            "unload_model": self._unload,
        }

    def __call__(self, run: TrainingRun, command: Command) -> Answer:
        """The answer to a command. Raises Refused, UserError."""
        if not run.alive:
            self.trainer.create(run.id, run.shape)
            run.alive = True
            if run.snapshot is not None:
                self.trainer.load(run.id, run.snapshot, optimizer=True)
        passes = command.path in ("forward", "forward_backward")
        return self._do[command.path](run, command, {} if passes else parse(command.body))

    def snapshot(self, run: TrainingRun) -> Path:
        """Write a model as it is; returns the folder."""
        draft, folder = run.folder / "snapshots" / "draft", run.folder / "snapshots" / f"{run.next - 1}.{run.steps}"
        shutil.rmtree(draft, ignore_errors=True)
        self.trainer.save(run.id, draft)
        return draft.replace(folder)

    def _pass(self, run: TrainingRun, command: Command, body: Body) -> Answer:
        asked = read_pass(command.body, command.form, forward=command.path == "forward")
        result = self.trainer.forward_backward(run.id, asked.data, asked.loss, asked.settings, backward=asked.backward)
        run.losses["actor/loss"] = result.metrics["loss:sum"]
        return pass_answer(result, command.form)

    def _optim_step(self, run: TrainingRun, command: Command, body: Body) -> Answer:
        given = field(body, "adam_params", dict, {})
        defaults = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0}
        values = {
            name: field(given, name, float, value) for name, value in (defaults | {"grad_clip_norm": 0.0}).items()
        }
        metrics = self.trainer.optim_step(run.id, Adam(**values))
        run.metrics.log(run.steps + 1, {"actor/lr": values["learning_rate"]} | run.losses | metrics)
        return {"type": "optim_step", "metrics": metrics}

    def _save_weights(self, run: TrainingRun, command: Command, body: Body) -> Answer:
        return self._checkpoint(run, command, body, "weights")

    def _save_for_sampler(self, run: TrainingRun, command: Command, body: Body) -> Answer:
        if body.get("path") is not None:
            return self._checkpoint(run, command, body, "sampler_weights")
        self.trainer.export(run.id, run.folder / "sampling" / str(command.seq))
        for old in sorted((run.folder / "sampling").iterdir(), key=lambda path: path.stat().st_mtime)[:-SAMPLERS]:
            shutil.rmtree(old)
        name = "inflight" if body.get("kind") == "inflight" else command.seq
        return {"type": "save_weights_for_sampler", "sampling_session_id": f"{run.id}:sample:{name}"}

    def _checkpoint(self, run: TrainingRun, command: Command, body: Body, kind: str) -> Answer:
        name, path = field(body, "path", str), f"tinker://{run.id}/{kind}/{body['path']}"
        if not PATH.fullmatch(path):
            raise UserError(f"path={name[:100]!r}: name a checkpoint with letters, digits, and . _ -")
        folder = run.folder / kind / name
        known = orjson.loads(note_of(folder).read_bytes()) if note_of(folder).is_file() else {"seq": None}
        if known["seq"] not in (None, command.seq) and not body.get("overwrite"):
            raise UserError(f"{path} is there already: choose another name, or pass overwrite=True")
        if known["seq"] != command.seq:
            if known["seq"] is not None:
                delete_checkpoint(folder)
            (self.trainer.save if kind == "weights" else self.trainer.export)(run.id, folder)
            facts = {"checkpoint_id": f"{kind}/{name}", "checkpoint_type": KINDS[kind], "tinker_path": path}
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            note = facts | {"time": stamp(), "size_bytes": size, "public": False, "seq": command.seq}
            write_synced(note_of(folder), orjson.dumps(note))
            set_ttl(folder, field(body, "ttl_seconds", int, None))
        return {"type": command.path, "path": path}

    def _load(self, run: TrainingRun, command: Command, body: Body) -> Answer:
        path = field(body, "path", str)
        folder = checkpoint_folder(self.runs, path, run.facts["owner"])
        self.trainer.load(run.id, folder, optimizer=field(body, "optimizer", bool, False))
        return {"type": "load_weights", "path": path, "model_id": run.id}

    def _unload(self, run: TrainingRun, command: Command, body: Body) -> Answer:
        run.closing = True
        return {"type": "unload_model", "model_id": run.id}
