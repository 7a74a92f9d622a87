"""Tinker's API over a trainer and samplers: sessions and models.

Invariants: models are trained in turn, so that none waits for more than one turn of each other; a model belongs to the
key whose session created it; answers that were given can be fetched again.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agentrl.core.errors import UserError
from agentrl.http.refusals import Refused
from agentrl.serve.contract import Samplers, Trainer
from agentrl.serve.operations import Operations, checkpoint_folder, delete_expired, facts_of, stamp
from agentrl.serve.runs import Answer, TrainingRun, write_synced
from agentrl.serve.wire import JSON, LOSSES, field, read_head

log = logging.getLogger(__name__)

Body = dict[str, Any]
SESSION_SECONDS, GAP_SECONDS, SWEEP_SECONDS = 1800.0, 600.0, 30.0
"""Seconds without a heartbeat after which a session ends, those that a command waits for the one before it, and those
between two searches for such ones."""
MAX_MODELS, MAX_PENDING, MAX_PENDING_BYTES = 16, 4096, 2**30
"""Models, commands that wait, and their bytes, of one key."""
TURN = 64
"""Commands that a model may run before the next model's turn."""


@dataclass(frozen=True)
class Base:
    """The model that is served."""

    path: str
    """Its folder, from which clients on this machine load the tokenizer."""
    max_tokens: int
    stop_ids: tuple[int, ...]

    def check(self, name: str) -> None:
        """Raises Refused for the name of another model."""
        if Path(name).name.lower() != Path(self.path).name.lower():
            raise Refused(f"base_model={name[:200]!r} is not served here: use {self.path}")


class Service:
    """Sessions, and the models that they train."""

    def __init__(self, trainer: Trainer, samplers: Samplers, base: Base, folder: Path) -> None:
        self.trainer, self.samplers, self.base = trainer, samplers, base
        self.folder, self._sessions = folder / "runs", folder / "sessions"
        self.runs: dict[str, TrainingRun] = {}
        self.sessions: dict[str, Body] = {}
        self._seen: dict[str, float] = {}
        """When a session was last heard of."""
        self._do = Operations(trainer, self.folder)
        self._thread = ThreadPoolExecutor(1, "trainer")
        self._wake = asyncio.Event()

    async def start(self) -> None:
        """Go on from where the last process was."""
        for folder in (self.folder, self._sessions):
            folder.mkdir(parents=True, exist_ok=True)
        self.sessions = {file.stem: orjson.loads(file.read_bytes()) for file in self._sessions.glob("*.json")}
        self._seen = dict.fromkeys(self.sessions, time.monotonic())
        open_runs = [
            file.parent for file in self.folder.glob("*/run.json") if facts_of(file.parent)["session"] in self.sessions
        ]
        self.runs = {folder.name: TrainingRun(folder) for folder in open_runs}
        self._tasks = [asyncio.create_task(work) for work in (self._work(), self._sweep())]
        self._wake.set()

    async def close(self) -> None:
        """Stop; what was acknowledged stays."""
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self._thread.shutdown)
        await self.samplers.close()

    async def _work(self) -> None:
        while await self._wake.wait():
            self._wake.clear()
            while ready := [run for run in self.runs.values() if run.ready]:
                async with self.samplers.training():
                    for run in ready:
                        await self._turn(run)
            for run in [run for run in self.runs.values() if run.closing]:
                del self.runs[run.id]
                run.close("the session has ended, or a command before this one never came")
                if run.alive:
                    await self._in_thread(self.trainer.remove, run.id)

    async def _turn(self, run: TrainingRun) -> None:
        """Run a model's commands up to an optimizer step."""
        for _ in range(TURN):
            if (command := run.ready) is None:
                return
            if not command.failed:
                run.ran(command, await answered(self._in_thread(self._do, run, command)))
            if run.wants_snapshot:
                run.snapshot_taken(await self._in_thread(self._do.snapshot, run))
            if command.path == "optim_step":
                return

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def _sweep(self) -> None:
        """End sessions without a heartbeat and models whose commands never come; delete checkpoints after their time."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            for session in [name for name, seen in self._seen.items() if now - seen > SESSION_SECONDS]:
                self.finish(session)
            for run in self.runs.values():
                run.closing |= bool(run.pending) and not run.ready and now - run.since > GAP_SECONDS
            await asyncio.to_thread(delete_expired, self.folder)
            self._wake.set()

    def create_session(self, owner: str) -> Body:
        """A new session."""
        name = f"s-{secrets.token_hex(8)}"
        self.write_session(name, {"owner": owner, "samplers": {}})
        return {"type": "create_session", "session_id": name}

    def write_session(self, name: str, session: Body) -> None:
        """Have a session as it is, also after a restart."""
        write_synced(self._sessions / f"{name}.json", orjson.dumps(session))
        self.sessions[name], self._seen[name] = session, time.monotonic()

    def session(self, name: str, owner: str) -> Body:
        """A session of `owner`, which has a sign of life by this. Raises Refused."""
        found = self.sessions.get(name, {"owner": None})
        if found["owner"] != owner:
            raise Refused(
                f"session {name[:100]!r} has ended, or belongs to another key: start the program anew", "lost"
            )
        self._seen[name] = time.monotonic()
        return found

    def finish(self, name: str) -> Body:
        """End a session: its models go once their commands have run; checkpoints stay."""
        (self._sessions / f"{name}.json").unlink(missing_ok=True)
        self.sessions.pop(name, None)
        self._seen.pop(name, None)
        for run in self.runs.values():
            run.closing |= run.facts["session"] == name
        self._wake.set()
        return {}

    async def create(self, owner: str, path: str, raw: bytes, body: Body) -> Body:
        """Create a model, from a checkpoint where the body names one. Raises Refused."""
        session = field(body, "session_id", str)
        self.session(session, owner)
        name = f"{session}:train:{field(body, 'model_seq_id', int)}"
        if name not in self.runs:
            if sum(run.facts["owner"] == owner for run in self.runs.values()) >= MAX_MODELS:
                raise Refused(f"{MAX_MODELS} models are open with this key: end a program that trains some")
            facts = {"owner": owner, "session": session, "time": stamp(), "user_metadata": body.get("user_metadata")}
            folder = self.folder / name
            for below in ("commands", "snapshots", "sampling", "weights", "sampler_weights"):
                (folder / below).mkdir(parents=True, exist_ok=True)
            write_synced(folder / "run.json", orjson.dumps(facts | {"shape": self._shape(owner, body)}))
            self.runs[name] = TrainingRun(folder)
        return await self._submit(name, 0, path, JSON, raw)

    def _shape(self, owner: str, body: Body) -> Body:
        if "path" in body:
            return dict(facts_of(checkpoint_folder(self.folder, field(body, "path", str), owner).parents[1])["shape"])
        self.base.check(field(body, "base_model", str))
        lora = field(body, "lora_config", dict, {})
        flags = {"attention": "train_attn", "mlp": "train_mlp", "unembed": "train_unembed"}
        shape = {ours: field(lora, theirs, bool, True) for ours, theirs in flags.items()}
        return shape | {"rank": field(lora, "rank", int, 32), "seed": field(lora, "seed", int, None)}

    async def command(self, owner: str, path: str, form: str, raw: bytes) -> Body:
        """Take a command of a model. Raises Refused."""
        name, seq, loss = read_head(raw, form)
        self.run(name, owner)
        waiting = [command for run in self.runs.values() if run.facts["owner"] == owner for command in run.pending]
        if len(waiting) >= MAX_PENDING or sum(len(command.body) for command in waiting) > MAX_PENDING_BYTES:
            raise Refused("too many commands wait: wait for answers first", "busy")
        if loss in ("", *LOSSES):
            return await self._submit(name, seq, path, form, raw)
        await self._submit(name, seq, "refused", JSON, b"{}")
        fix = "use loss_fn=importance_sampling, or one of"
        raise Refused(f"loss_fn={loss[:80]!r} is not served: {fix} {', '.join(LOSSES)}")

    async def _submit(self, name: str, seq: int | None, path: str, form: str, raw: bytes) -> Body:
        command = await self.runs[name].submit(seq, path, form, raw)
        self._wake.set()
        return {"request_id": f"{name}/{command.seq}", "model_id": name}

    def run(self, name: str, owner: str) -> TrainingRun:
        """An open model of `owner`. Raises Refused."""
        run = self.runs.get(name)
        if run is None or run.facts["owner"] != owner:
            raise Refused(f"model {name[:100]!r} is not open: create it, or load a checkpoint of it", "missing")
        self._seen[run.facts["session"]] = time.monotonic()
        return run


async def answered(work: Awaitable[Answer]) -> Answer:
    """The answer that `work` gives, or its error as one."""
    try:
        return await work
    except (UserError, Refused) as error:
        return {"error": str(error), "category": "user"}
    except Exception as error:
        log.exception("a request failed")
        return {"error": f"{type(error).__name__}: {error}", "category": "server"}
