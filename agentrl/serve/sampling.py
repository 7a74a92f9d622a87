"""Samples of the base and of the weights that models have saved."""

import asyncio
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.engines.engine import Sampling
from agentrl.engines.scores import TokenScores
from agentrl.http.refusals import Refused
from agentrl.serve.operations import checkpoint_folder
from agentrl.serve.runs import Answer
from agentrl.serve.service import Body, Service, answered
from agentrl.serve.wire import field, prompt_ids

UNNAMED = re.compile(r"(s-\w+:train:\d+):sample:(\d+|inflight)", re.ASCII)
MAX_SAMPLES, MAX_DRAWS, MAX_TOPK = 8192, 256, 128
"""Requests of one key that wait, answers to one prompt, and likeliest tokens in place of one."""
ANSWERS = 20_000
"""Requests whose answers can be fetched again."""
UNSERVED = ("target_prompt_logprobs", "prompt_alt_tokens_k", "prompt_logprobs_last_n", "record_stability_info")


class Samples:
    """Requests for samples, and their answers."""

    def __init__(self, service: Service) -> None:
        self.service, self.answers = service, dict[str, asyncio.Future[Answer]]()
        self._waiting = Counter[str]()
        """Requests that wait, by key."""

    def create(self, owner: str, body: Body) -> Body:
        """A sampling session: the base, or a checkpoint."""
        name = field(body, "session_id", str)
        session, number = self.service.session(name, owner), field(body, "sampling_session_seq_id", int)
        path = field(body, "model_path", str, "")
        if path:
            checkpoint_folder(self.service.folder, path, owner)
        else:
            self.service.base.check(field(body, "base_model", str))
        self.service.write_session(name, session | {"samplers": session["samplers"] | {str(number): path}})
        return {"type": "create_sampling_session", "sampling_session_id": f"{name}:sample:{number}"}

    def weights(self, sampler: str, owner: str) -> tuple[str, Path | None]:
        """Path and folder of a sampler's weights; "" and None: the base. Raises Refused."""
        if unnamed := UNNAMED.fullmatch(sampler):
            folders = self.service.run(unnamed[1], owner).folder / "sampling"
            name = unnamed[2] if unnamed[2] != "inflight" else max(os.listdir(folders), key=int, default="")
            if not name or not (folders / name).is_dir():
                raise Refused("these weights were dropped for newer ones: give weights a name to keep them", "missing")
            os.utime(folders / name)
            return "", folders / name
        session, _, number = sampler.rpartition(":sample:")
        path = self.service.session(session, owner)["samplers"].get(number)
        if path is None:
            raise Refused(f"sampler {sampler[:100]!r} is unknown", "missing")
        return path, checkpoint_folder(self.service.folder, path, owner) if path else None

    def submit(self, owner: str, body: Body) -> Body:
        """Take a request; a repeated one is the one before. Raises Refused."""
        sampler, count = field(body, "sampling_session_id", str), field(body, "num_samples", int, 1)
        name = f"{sampler}/{field(body, 'seq_id', int, len(self.answers))}"
        if name not in self.answers:
            if self._waiting[owner] >= MAX_SAMPLES:
                raise Refused("too many samples wait: ask again later", "busy")
            if not 1 <= count <= MAX_DRAWS:
                raise Refused(f"num_samples={count}: ask for 1 to {MAX_DRAWS}")
            work = answered(self._drawn(self.weights(sampler, owner)[1], count, body))
            self._waiting[owner] += 1
            self.answers[name] = asyncio.ensure_future(work)
            self.answers[name].add_done_callback(lambda _: self._waiting.subtract([owner]))
            for old in [name for name, answer in self.answers.items() if answer.done()][:-ANSWERS]:
                del self.answers[old]
        return {"request_id": name, "sample_sequence_ids": [f"{name}/{i}" for i in range(count)]}

    async def _drawn(self, weights: Path | None, count: int, body: Body) -> Answer:
        ids, (sampling, texts) = prompt_ids(field(body, "prompt", dict)), self._sampling(body)
        if unserved := [name for name in UNSERVED if body.get(name)]:
            raise Refused(f"{unserved[0]} is not served: leave it out")
        seeds = [None if sampling.seed is None else sampling.seed + i for i in range(count)]
        draws = [replace(sampling, seed=seed) for seed in seeds]
        engine = self.service.samplers
        drawn = await asyncio.gather(*(engine.generate(weights, ids, draw, stop=texts) for draw in draws))
        sequences = [
            {
                "stop_reason": "stop" if d.finish_reason == "stop" else "length",
                "tokens": d.token_ids,
                "logprobs": d.logprobs,
            }
            for d in drawn
        ]
        answer: Body = {"type": "sample", "sequences": sequences}
        if k := min(field(body, "topk_sample_logprobs", int, 0), MAX_TOPK):
            for sequence in sequences:
                scores = await engine.score(weights, [*ids, *sequence["tokens"]], k)
                sequence["topk_logprobs"] = _likeliest(scores)[len(ids) :]
        k = min(field(body, "topk_prompt_logprobs", int, 0), MAX_TOPK)
        if k or field(body, "prompt_logprobs", bool, False):
            scores = await engine.score(weights, ids, k)
            answer["prompt_logprobs"] = [None, *scores.logprobs.tolist()]
            answer["topk_prompt_logprobs"] = _likeliest(scores) if k else None
        return answer

    def _sampling(self, body: Body) -> tuple[Sampling, tuple[str, ...]]:
        """Sampling and stop texts of a request. Raises Refused."""
        given, base = field(body, "sampling_params", dict, {}), self.service.base
        stop = given.get("stop")
        stops = [stop] if isinstance(stop, str) else stop or []
        texts = tuple(text for text in stops if isinstance(text, str))
        ids = base.stop_ids if stop is None else tuple(token for token in stops if type(token) is int)
        if len(texts) + (len(ids) if stop is not None else 0) != len(stops) or len(stops) > MAX_TOPK:
            raise Refused("stop: give a text, a list of texts, or a list of token ids")
        values = {name: field(given, name, float, 1.0) for name in ("temperature", "top_p")}
        length, seed = field(given, "max_tokens", int, base.max_tokens), field(given, "seed", int, None)
        top_k = max(field(given, "top_k", int, -1), 0)
        return Sampling(length, **values, top_k=top_k, seed=seed, stop_token_ids=ids, ignore_eos=not ids), texts


def _likeliest(scores: TokenScores) -> list[Any]:
    """Rows of (token, log-prob), the first token without one."""
    rows = np.stack([scores.topk_ids, scores.topk_logprobs], -1).tolist()
    return [None, *([(int(token), logprob) for token, logprob in row] for row in rows)]
