"""Teachers on servers: they score tokens while the policy samples others.

Invariants:
- a teacher reads the tokens as they were sampled, and its answer is checked before anything trains on it;
- at most `CONCURRENT` requests are sent to a server at a time; converting an answer does not block the event loop;
- a server that dies is started again; one that cannot be started fails every later request at once.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.config.schema import Config, Model, Rollout, Teacher
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.backends import server_backend
from agentrl.engines.gpus import teacher_gpus, visible_gpus
from agentrl.engines.launching import engine_name, in_process, own_replica
from agentrl.engines.scores import TokenScores, checked_scores
from agentrl.engines.servers import Replica, ServerBackend
from agentrl.engines.servers.client import ServerClient
from agentrl.engines.servers.remote_engine import MAX_STARTS
from agentrl.engines.servers.replica_pool import ReplicaPool
from agentrl.engines.sharing import Sharing, model_length, text_config
from agentrl.trajectory.medium import Medium

CONCURRENT = 64
PROBED = 64
"""Tokens whose texts are compared with those of a server that has a tokenizer."""

Launch = Callable[[ServerBackend, int, Path], Replica]
"""Starts a server on so many GPUs, with a log file."""


class ServerTeacher:
    """A teacher on a server, which is asked first when a trajectory ends."""

    def __init__(self, name: str, replica: Replica, config: Config, tokenizer: Any) -> None:
        """`config`: the run's, `tokenizer`: the policy's."""
        self.name, self.replica, self.tokenizer = name, replica, tokenizer
        self.client = ServerClient(replica.backend, ReplicaPool([replica], self._restart))
        known = text_config(str(config.model.path), config.model.lora_rank)
        self.vocabulary: int = known.get("vocab_size") or len(tokenizer)
        self._slots = asyncio.Semaphore(CONCURRENT)
        self._asked = False

    async def top_k(
        self, ids: Sequence[int], mask: Sequence[int], k: int, *, key: str, media: Sequence[Medium] = ()
    ) -> TokenScores:
        """The log-probs of the tokens of `ids` [T] where `mask` is 1, and the `k` likeliest in place of each; k = 0:
        none. `key`: of the trajectory. Raises InfraError, and UserError where the server cannot be a teacher."""
        sent, wanted = np.asarray(ids), np.flatnonzero(np.asarray(mask))
        wanted = wanted[wanted > 0]  # nothing is before the first token
        if not self._asked:
            self.client.pool.lost(self.replica)
        self._asked = True
        async with self._slots:
            asked = sent[: wanted[-1] + 1].tolist()
            answer = await self.client.score(asked, media, int(wanted[0]), k, key=key)
        self.client.release(key)
        return await asyncio.to_thread(checked_scores, answer, sent, wanted, k=k, vocabulary=self.vocabulary)

    async def _restart(self, replica: Replica) -> None:
        """Start a server of the run, or wait for another's. Raises UserError for tokens that are not the policy's."""
        if replica.starts >= MAX_STARTS:
            raise InfraError(f"teacher {self.name}: its server died {MAX_STARTS} times; its log says why")
        replica.launch()
        rollout = self.client.rollout
        await replica.ready(rollout.start_timeout)
        ids = np.linspace(0, len(self.tokenizer) - 1, PROBED).astype(int).tolist()
        given, _ = await replica.backend.score(replica.http, ids, (), 1, 0, rollout.request_timeout)
        theirs = {entry[1]: entry[2] for entry in given if (entry[2] or "").strip("\ufffd ")}
        check_tokens(self.name, theirs, {token: self.tokenizer.decode([token]) for token in theirs})


def launch_teachers(config: Config, kind: str, launch: Launch) -> dict[str, ServerTeacher]:
    """The teachers that are on servers, by name; servers of the run start now. `kind`: of their device, cpu or cuda.
    Raises UserError, before any server starts, for a teacher with other tokens than the policy's."""
    from agentrl.training.model.loading import load_tokenizer, load_tokenizer_from

    served = {name: teacher for name, teacher in config.teachers.items() if not teacher.on_ranks}
    tokenizer = load_tokenizer(config.model) if served else None
    for name, teacher in served.items():
        if teacher.path is not None:
            theirs = load_tokenizer_from(teacher.path, f"teachers.{name}.model.path", trust_remote_code=False)
            check_tokens(name, _texts(theirs), _texts(tokenizer))
    made = {}
    for name, teacher in served.items():
        backend = _backend(config, teacher, kind)
        log = Path(config.trainer.default_local_dir).absolute() / "engine" / f"teacher-{name}.log"
        replica = Replica(backend, teacher.base_url) if teacher.base_url else launch(backend, teacher.n_gpus, log)
        replica.launch()
        made[name] = ServerTeacher(name, replica, config, tokenizer)
    return made


def with_addresses(config: Config, servers: Mapping[str, ServerTeacher]) -> Config:
    """The settings for another process: it sends requests to these servers, and starts none."""
    known = dict(config.teachers)
    for name, server in servers.items():
        known[name] = replace(known[name], base_url=server.replica.url, engine=server.replica.backend.name)
    return replace(config, teachers=known)


def launcher_here(config: Config, kind: str) -> Launch:
    """Starts teachers on the last GPUs of this machine. Raises UserError where they leave none to the policy."""
    needed, gpus = teacher_gpus(config.teachers), visible_gpus() if kind == "cuda" else []
    if gpus and needed >= len(gpus):
        raise UserError(
            f"teachers: servers on {needed} of {len(gpus)} GPUs leave the policy none: set engine: hf or base_url"
        )
    taken = iter(gpus[-needed:] if needed else ())
    return lambda backend, count, log: own_replica(backend, list(islice(taken, count)), log)


def _backend(config: Config, teacher: Teacher, kind: str) -> ServerBackend:
    """The backend of a run whose engine is the teacher's server."""
    name, data = teacher.engine or engine_name(config.rollout, kind), config.data
    rollout = Rollout(
        name="sglang" if in_process(name) else name,
        base_url=teacher.base_url,
        tensor_model_parallel_size=teacher.n_gpus if kind == "cuda" else 1,
        load_format="auto",
        max_model_len=model_length(config) + data.max_prompt_length + 1,  # another prompt, and a token of vLLM's
        max_num_seqs=CONCURRENT,
        engine_python=config.rollout.engine_python,
        start_timeout=config.rollout.start_timeout,
        request_timeout=config.rollout.request_timeout,
        engine_kwargs={"vllm": {"max_logprobs": max(config.distillation.topk, 1)}},
    )
    model = Model(teacher.path or config.model.path, config.model.trust_remote_code, dtype=config.model.dtype)
    settings = Config(data=data, model=model, rollout=rollout, trainer=config.trainer)
    return server_backend(rollout.name, settings, kind, Sharing(apart=True))


def _texts(tokenizer: Any) -> dict[int, str]:
    return {token: text for text, token in tokenizer.get_vocab().items()}


def check_tokens(name: str, theirs: dict[int, str], ours: dict[int, str]) -> None:
    """Raises UserError for a teacher with other texts of the same tokens."""
    other = next((token for token, text in ours.items() if theirs.get(token, text).strip() != text.strip()), None)
    if other is not None:
        raise UserError(
            f"teachers.{name}: token {other} is {theirs[other]!r} there and {ours[other]!r} for the policy: a teacher "
            "scores the policy's own tokens, so take one with the policy's tokenizer"
        )
