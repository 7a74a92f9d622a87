"""What the addresses of the API do: sessions, the models that they train in turn, and samples.

Invariants: models that wait share the trainer's time equally, in turns of one micro-batch at most; a session, its
models and their checkpoints belong to the key that made them; an answer can be fetched again.
"""

import asyncio
import logging
import os
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agentrl.core.errors import InfraError, UserError
from agentrl.core.outputs import write_atomic
from agentrl.engines.engine import Sampling
from agentrl.http.refusals import Refused
from agentrl.serve import downloads, runs, wire
from agentrl.serve.runs import INFO, NOTE, TrainingRun, facts_in, facts_of, folder_of
from agentrl.serve.wire import Answer, Body, field
from agentrl.training.checkpoint.restarts import RanksFailed, WorkerDied
from agentrl.trajectory.medium import Media

if TYPE_CHECKING:
    from agentrl.serve.models import Models  # which imports torch
    from agentrl.serve.samplers import Samplers

log = logging.getLogger(__name__)

SESSION_SECONDS, SILENT_SECONDS, POLL_SECONDS = 1800.0, 180.0, 25.0
"""Seconds without a heartbeat after which a session ends, and where its key needs room; those that a request for an
answer takes."""
MAX_MODELS, MAX_COMMANDS, MAX_BYTES, MAX_SAMPLES, MAX_DRAWS = 16, 4096, 2**30, 8192, 256
"""Models of a key; its commands that wait, and their bytes, which are also those of its prompts; its prompts that wait,
and the answers to one."""
IMAGE_PARTS = 64
"""Parts of the memory for images of prompts, which has room for MAX_FEATURES numbers."""
MAX_STOPS, MAX_ANSWERS = 128, 20_000
"""Texts that end an answer, and prompts whose answers can be fetched again."""
SEEDS = 1_000_003
"""Distance of the seeds of two answers to a prompt."""
SAMPLER = re.compile(r"s-\w+:sample:\d+~(?:(s-\w+:train:\d+)~(sampling|sampler_weights)~(\w[\w.-]*))?", re.ASCII)
NAME = re.compile(r"s-([0-9a-f]{16})_[0-9a-f]{16}[\w:~.-]*(/\d+)?", re.ASCII)
UNSERVED = ("target_prompt_logprobs", "prompt_alt_tokens_k", "topk_sample_logprobs", "record_stability_info")


class Call(NamedTuple):
    """A request of a key's owner."""

    owner: str
    path: str
    rest: list[str]
    """Parts of the address after `path`."""
    body: Body
    raw: bytes
    http: Request


class Service:
    """Sessions, models and samples. Its methods VERB_NAME are addresses; they raise Refused."""

    def __init__(
        self, trainer: "Models", samplers: "Samplers", model: Path, alpha: float, ends: tuple[int, ...], folder: Path
    ) -> None:
        """`model`: where clients load the tokenizer; `alpha`: of all adapters; `ends`: tokens that end an answer;
        `folder`: for restarts."""
        self._trainer, self._samplers, self._ends = trainer, samplers, ends
        # The SDK leaves out the last part of a name with two slashes.
        self._model = f"/.{model}" if str(model).count("/") == 2 else str(model)
        self._base, self.folder = {"base_model": self._model, "lora_alpha": alpha}, folder
        self._runs: dict[str, TrainingRun] = {}
        self._seen: dict[str, float] = {}
        """When a session was last heard of."""
        self._samples: dict[str, asyncio.Future[Answer]] = {}
        self._waiting = defaultdict[str, list[int]](list)
        """The bytes of each prompt of a key that waits."""
        self._reading, self._room = asyncio.Lock(), asyncio.Semaphore(IMAGE_PARTS)
        """Held to read images, and a part of the memory for them."""
        self._begun = 0.0
        """Seconds that the model of the last turn had used before it."""
        self._thread, self._wake = ThreadPoolExecutor(1, "trainer"), asyncio.Event()

    async def start(self) -> None:
        paths = [path.parent for path in self.folder.glob("s-*/commands")]
        self._runs = {path.name: TrainingRun(path, self._base, self._trainer) for path in paths}
        self._seen = {name.partition(":")[0]: time.monotonic() for name in self._runs}
        self.training = asyncio.create_task(self._train())
        self._wake.set()

    async def close(self) -> None:
        self.training.cancel()
        await asyncio.to_thread(self._thread.shutdown)
        await self._samplers.close()

    async def _train(self) -> None:
        """Run commands in turns, and end the models that their clients have left."""
        while await self._wake.wait():
            self._wake.clear()
            if ready := [run for run in self._runs.values() if run.ready]:
                self._wake.set()
                async with self._samplers.training():
                    await self._turn(ready)
            for name in [name for name, seen in self._seen.items() if time.monotonic() - seen > SESSION_SECONDS]:
                self._finish(name)
            for run in [run for run in self._runs.values() if run.closing and not run.ready]:
                self._runs.pop(run.id).close()
                await answered(self._in_thread(self._trainer.remove, run.id))

    async def _turn(self, runs: list[TrainingRun]) -> None:
        """Run a command, or one micro-batch of it, of the model that has used the least time."""
        # Time that a model has not used is not saved up.
        run, begun = min(runs, key=lambda run: max(run.used, self._begun)), time.monotonic()
        self._begun, command = max(run.used, self._begun), run.commands[run.next]
        try:
            answer = {} if command.failed else await answered(self._in_thread(run.do, command))
        except RanksFailed as failed:
            # Once answered, it does not run again. What has run before a restart may fail after each.
            failed.counts = command.answer.done()
            run.ran(command, {"error": str(failed), "category": "server"})
            raise
        if answer is not None:
            run.ran(command, answer)
            await self._in_thread(run.take_snapshot)
        run.used = self._begun + time.monotonic() - begun

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        """The result of work of the trainer. Raises WorkerDied where its ranks have to start again."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)
        except InfraError as error:
            raise error if isinstance(error, WorkerDied) else RanksFailed(str(error)) from error

    def post_client(self, call: Call) -> Answer:
        """Settings of the SDK: the static and the dynamic ones."""
        return {"pjwt_auth_enabled": False, "proto_write_fwdbwd": True, "refresh_interval_sec": 300}

    def post_telemetry(self, call: Call) -> Answer:
        return {"status": "accepted"}

    def post_create_session(self, call: Call) -> Answer:
        return {"type": "create_session", "session_id": f"s-{call.owner}_{secrets.token_hex(8)}"}

    def post_session_heartbeat(self, call: Call) -> Answer:
        self._wake.set()
        return {"type": "session_heartbeat", "session_id": self._owned(call, field(call.body, "session_id", str))}

    def _owned(self, call: Call, name: str) -> str:
        """The name of something of the caller's, whose session lives by this."""
        if not (found := NAME.fullmatch(name)) or found[1] != call.owner:
            raise Refused(f"{name[:100]!r} is unknown, or belongs to another key", "missing")
        self._seen[name.partition(":")[0]] = time.monotonic()
        return name

    def post_sessions(self, call: Call) -> Answer:
        self._finish(self._owned(call, call.rest[0]))
        return {}

    def _finish(self, name: str) -> None:
        """End a session: its models go once their commands have run; checkpoints stay."""
        self._seen.pop(name, None)
        for run in self._runs.values():
            run.closing |= run.id.startswith(f"{name}:")
        self._wake.set()

    async def post_create_model(self, call: Call) -> Answer:
        """A new model, that of a checkpoint where the body has a path."""
        session, number = field(call.body, "session_id", str), field(call.body, "model_seq_id", int)
        folder = self.folder / f"{self._owned(call, session)}:train:{number}"
        if folder.name not in self._runs:
            self._make_room(call.owner)
            info = {"training_run_id": folder.name, "model_owner": call.owner, "last_request_time": time.time()}
            write_atomic(folder / INFO, [orjson.dumps(self._adapter(call) | info).decode()])
            for name in ("commands", "snapshots", "sampling", *runs.TYPES):
                (folder / name).mkdir(exist_ok=True)
            self._runs[folder.name] = TrainingRun(folder, self._base, self._trainer)
        return await self._submit(call, folder.name, 0)

    def _make_room(self, owner: str) -> None:
        """Where a key has its number of models, end the session that has been silent for the longest: its program may
        have died. Raises Refused where all programs live."""
        mine = [run for name, run in self._runs.items() if name.startswith(f"s-{owner}_")]
        sessions = [run.id.partition(":")[0] for run in mine if not run.closing]
        if len(mine) >= 2 * MAX_MODELS:
            raise Refused("commands of programs that have ended still wait: ask again later", "busy")
        if len(sessions) < MAX_MODELS:
            return
        seen, session = min((self._seen[name], name) for name in sessions)
        if time.monotonic() - seen < SILENT_SECONDS:
            raise Refused(f"{MAX_MODELS} models are open with this key: end a program that trains some")
        self._finish(session)

    def _adapter(self, call: Call) -> dict[str, Any]:
        """The adapter of a new model, in the protocol's words."""
        if "path" in call.body:
            lora = facts_of(folder_of(self.folder, field(call.body, "path", str), call.owner).parents[1], self._base)
        else:
            self._check_base(call)
            lora = {"rank": 32, **dict.fromkeys(runs.PARTS.values(), True), **call.body.get("lora_config", {})}
        if (kind := field(call.body, "optimizer_config", dict, {}).get("type", "adamw")) != "adamw":
            raise Refused(f"the optimizer {kind!r} is not served: use adamw")
        if (rank := field(lora, "rank", int)) > (most := self._samplers.rank):
            raise Refused(f"rank={rank}: the engine takes {most} at most, or model.lora_rank of agentrl serve")
        own = {"is_lora": rank != 0, "lora_rank": rank, "seed": field(lora, "seed", int, 0)}
        return lora | self._base | own

    def _check_base(self, call: Call) -> None:
        name = field(call.body, "base_model", str)
        if Path(name).name.lower() != Path(self._model).name.lower():
            raise Refused(f"base_model={name[:200]!r} is not served here: use {self._model}")

    async def post_load_weights(self, call: Call) -> Answer:
        return await (self.post_optim_step if "model_id" in call.body else self.post_create_model)(call)

    async def post_optim_step(self, call: Call) -> Answer:
        return await self._submit(call, field(call.body, "model_id", str), field(call.body, "seq_id", int, None))

    post_save_weights = post_save_weights_for_sampler = post_save_weights_external = post_optim_step
    post_unload_model = post_forward = post_optim_step

    async def post_forward_backward(self, call: Call) -> Answer:
        if call.body:
            return await self.post_optim_step(call)
        message = await asyncio.to_thread(wire.MESSAGES["ForwardBackwardRequest"].FromString, call.raw)
        return await self._submit(call, message.model_id, message.seq_id or None)

    async def refuse(self, http: Request, owner: str, command: tuple[str, int] | None, why: str) -> None:
        """Have a refused command count where its model is the caller's: its number does not come again."""
        name, seq = command or ("", 0)
        if name in self._runs and name.startswith(f"s-{owner}_"):
            await self._submit(Call(owner, "refused", [], {}, why.encode(), http), name, seq)

    async def _submit(self, call: Call, name: str, seq: int | None) -> Answer:
        run, mine = self._run(call, name), f"s-{call.owner}_"
        waiting = [one for run in self._runs.values() if run.id.startswith(mine) for one in run.pending]
        if len(waiting) >= MAX_COMMANDS or sum(len(command.body) for command in waiting) > MAX_BYTES:
            raise Refused("too many commands wait: get answers first", "busy")
        command = await run.submit(seq, call.path, call.raw)
        self._wake.set()
        return {"request_id": f"{name}/{command.seq}", "model_id": name}

    def _run(self, call: Call, name: str) -> TrainingRun:
        """An open model of the caller."""
        if self._owned(call, name) not in self._runs:
            raise Refused(f"model {name[:100]!r} is not open: create it again, or from a checkpoint", "missing")
        return self._runs[name]

    async def post_retrieve_future(self, call: Call) -> Answer:
        name = self._owned(call, field(call.body, "request_id", str))
        model, _, seq = name.rpartition("/")
        found: Any = self._samples.get(name)
        if model in self._runs and (command := self._runs[model].commands.get(int(seq))):
            found = command.answer
        if found is None:
            raise Refused(f"the answer {name[:100]!r} is no longer there: ask again", "lost")
        if not (await asyncio.wait([found], timeout=POLL_SECONDS))[0]:
            raise Refused("the request still waits or runs: ask again", "slow")
        answer, packed = found.result(), wire.PROTOBUF in call.http.headers.get("accept", "")
        if isinstance(answer, bytes):
            return answer if packed else await asyncio.to_thread(wire.pass_answer, answer)
        return wire.sample_message(answer) if packed and "sequences" in answer else answer

    def post_create_sampling_session(self, call: Call) -> Answer:
        session, number = field(call.body, "session_id", str), field(call.body, "sampling_session_seq_id", int)
        name = f"{self._owned(call, session)}:sample:{number}~"
        if path := field(call.body, "model_path", str, ""):
            name += "~".join(folder_of(self.folder, path, call.owner).parts[-3:])
            self._weights(call, name)
        else:
            self._check_base(call)
        return {"type": "create_sampling_session", "sampling_session_id": name}

    def _weights(self, call: Call, name: str) -> Path | None:
        """Folder of a sampler's weights; None: the base."""
        if not (found := SAMPLER.fullmatch(name)):
            raise Refused(f"{name[:200]!r} is no sampler: give weights of save_weights_for_sampler, or none", "missing")
        if not found[1]:
            return None
        folder = self.folder / self._owned(call, found[1]) / found[2] / found[3]
        if not folder.is_dir():
            raise Refused("these weights are gone: give weights a name to have them longer", "missing")
        facts_of(folder.parents[1], self._base)
        os.utime(folder)
        return folder

    async def post_asample(self, call: Call) -> Answer:
        sampler = self._owned(call, field(call.body, "sampling_session_id", str))
        count = field(call.body, "num_samples", int, 1)
        name = f"{sampler}/{field(call.body, 'seq_id', int, secrets.randbits(60))}"
        if name not in self._samples:
            waiting = self._waiting[call.owner]
            if len(waiting) >= MAX_SAMPLES or sum(waiting) > MAX_BYTES:
                raise Refused("too many samples wait: ask again later", "busy")
            if not 1 <= count <= MAX_DRAWS or any(call.body.get(name) for name in UNSERVED):
                raise Refused(f"num_samples: ask for 1 to {MAX_DRAWS}; {', '.join(UNSERVED)} are not served")
            draws = self._drawn(self._weights(call, sampler), count, call.body)
            self._samples[name] = asyncio.ensure_future(answered(draws))
            waiting.append(len(call.raw))
            self._samples[name].add_done_callback(lambda _: waiting.remove(len(call.raw)))
            for old in [key for key, one in self._samples.items() if one.done()][:-MAX_ANSWERS]:
                del self._samples[old]
        return {"request_id": name, "sample_sequence_ids": [f"{name}/{i}" for i in range(count)]}

    async def _drawn(self, weights: Path | None, count: int, body: Body) -> Answer:
        """The samples of a prompt. All images in memory have twice MAX_FEATURES numbers at most: those that are sampled
        from, and those of one prompt that waits for room."""
        chunks = wire.chunks_of(field(body, "prompt", dict))
        async with AsyncExitStack() as images:
            async with self._reading if any(isinstance(chunk, tuple) for chunk in chunks) else nullcontext():
                ((ids, media),) = await asyncio.to_thread(wire.read_prompts, [chunks], self._trainer.processor)
                numbers = sum(tensor.numel() for medium in media for tensor in medium.features.values())
                for _ in range(-(-numbers * IMAGE_PARTS // wire.MAX_FEATURES)):
                    await images.enter_async_context(self._room)
            return await self._sampled(weights, count, body, ids, media)

    async def _sampled(self, weights: Path | None, count: int, body: Body, ids: list[int], media: Media) -> Answer:
        if (most := max(ids, default=0)) >= self._samplers.vocabulary:  # which would end a GPU's process
            raise Refused(f"the prompt has token {most}: the model knows 0 to {self._samplers.vocabulary - 1}")
        sampling, texts = self._sampling(body)
        seeds = [None if sampling.seed is None else sampling.seed + SEEDS * i for i in range(count)]
        ways = [replace(sampling, seed=seed) for seed in seeds]
        draws = [self._samplers.generate(weights, ids, way, stop=texts, media=media) for way in ways]
        drawn = await asyncio.gather(*draws)
        found = [{"tokens": one.token_ids, "logprobs": one.logprobs, "stop_reason": one.finish_reason} for one in drawn]
        k, scores = field(body, "topk_prompt_logprobs", int, 0), {}
        if not 0 <= k <= self._samplers.topk:
            raise Refused(f"topk_prompt_logprobs={k}: ask for at most {self._samplers.topk} tokens")
        if k or field(body, "prompt_logprobs", bool, False):
            last = max(field(body, "prompt_logprobs_last_n", int, len(ids)), 0)
            scores = wire.scores_answer(await self._samplers.score(weights, ids, k, media), max(len(ids) - last, 1))
        return {"type": "sample", "sequences": found} | scores

    def _sampling(self, body: Body) -> tuple[Sampling, list[str]]:
        """How to sample, and the texts that end it."""
        given = field(body, "sampling_params", dict, {})
        stops = [stop] if isinstance(stop := given.get("stop"), str) else stop
        ids = self._ends if stops is None else tuple(stop for stop in stops if type(stop) is int)
        temperature, top_p = (field(given, name, float, 1.0) for name in ("temperature", "top_p"))
        length, top_k = field(given, "max_tokens", int, self._samplers.longest), max(field(given, "top_k", int, -1), 0)
        seed = field(given, "seed", int, None)
        sampling = Sampling(length, temperature, top_p, top_k, seed=seed, stop_token_ids=ids, ignore_eos=not ids)
        return sampling, [stop for stop in stops or () if isinstance(stop, str)][:MAX_STOPS]

    def post_get_info(self, call: Call) -> Answer:
        run = self._run(call, field(call.body, "model_id", str))
        names = {"model_name": self._model, "tokenizer_id": self._model}
        return {"type": "get_info", "model_id": run.id, "model_data": names} | names | run.info

    def post_weights_info(self, call: Call) -> Answer:
        return facts_in(folder_of(self.folder, field(call.body, "tinker_path", str), call.owner).parents[1] / INFO)

    def get_get_server_capabilities(self, call: Call) -> Answer:
        return {"supported_models": [{"model_name": self._model, "max_context_length": self._samplers.longest}]}

    def get_samplers(self, call: Call) -> Answer:
        weights = self._weights(call, self._owned(call, call.rest[0]))
        path = weights and "tinker://" + "/".join(weights.parts[-3:])
        return {"sampler_id": call.rest[0], "base_model": self._model, "model_path": path}

    def get_training_runs(self, call: Call) -> Answer | Response:
        """All training runs, one of them, its checkpoints, or the addresses of a checkpoint's files."""
        if call.rest[2:]:
            return self._addresses(call)
        if call.rest:
            folder = self.folder / self._owned(call, call.rest[0])
            return self.get_checkpoints(call, folder.name) if call.rest[1:] else facts_in(folder / INFO)
        found = [facts_in(file) for file in self.folder.glob(f"s-{call.owner}_*/{INFO}")]
        return page(call, "training_runs", sorted(found, key=lambda run: -run["last_request_time"]))

    def _addresses(self, call: Call) -> Answer | Response:
        """The signed address of an archive, or those of each file. Raises Refused."""
        end = "archive" if call.rest[-1] == "archive" else "external_weights_urls"
        folder, expires = self._checkpoint(call, end), int(time.time()) + downloads.SECONDS
        names = [""] if end == "archive" else downloads.names_of(folder)[:-1]
        urls = {n: f"{call.http.base_url}api/v1/{downloads.signed(folder, n, expires)}" for n in names}
        return RedirectResponse(urls[""], 302) if "" in urls else {"urls": urls, "expires": expires}

    def _checkpoint(self, call: Call, *end: str) -> Path:
        """The folder of the checkpoint in an address of training runs that has this end. Raises Refused."""
        run, _, *rest = call.rest
        path = rest[:2] if rest[2:] == [*end] else rest
        return folder_of(self.folder, "/".join(["tinker:/", run, *path]), call.owner)

    def get_checkpoints(self, call: Call, run: str = "") -> Answer:
        """Checkpoints of a training run, or of all."""
        folders = self.folder.glob(f"{run or f's-{call.owner}_*'}/*weights/*")
        found = [facts_in(folder / NOTE) for folder in folders if runs.is_there(folder)]
        return page(call, "checkpoints", sorted(found, key=lambda checkpoint: -checkpoint["time"]))

    def put_training_runs(self, call: Call) -> Answer:
        """Set the time to live of a checkpoint; null: it stays."""
        note = self._checkpoint(call, "ttl") / NOTE
        write_atomic(note, [orjson.dumps(facts_in(note) | runs.expiry(call.body)).decode()])
        return {}

    def delete_training_runs(self, call: Call) -> Answer:
        """Delete a checkpoint."""
        runs.delete_checkpoint(self._checkpoint(call))
        return {}


def page(call: Call, name: str, found: list[dict[str, Any]]) -> Answer:
    """A part of a list, as the request's `offset` and `limit` say; all of it without a limit."""
    offset, limit = (max(int(call.http.query_params.get(key, 0)), 0) for key in ("offset", "limit"))
    shown = found[offset:][: limit or len(found)]
    return {name: shown, "cursor": {"offset": offset, "limit": limit or len(found), "total_count": len(found)}}


async def answered(work: Awaitable[Any]) -> Any:
    """The answer that `work` gives, or its error as one."""
    try:
        return await work
    except (UserError, Refused) as error:
        return {"error": str(error), "category": "user"}
    except WorkerDied:  # the command runs again after a restart
        raise
    except Exception as error:
        log.exception("a request failed")
        return {"error": f"{type(error).__name__}: {error}", "category": "server"}
