"""Teachers that score tokens outside of the training ranks: servers, and a model in this process.

Invariants:
- a teacher reads the tokens as they were sampled, and its answer is checked before anything trains on it;
- requests run side by side, at most `CONCURRENT` to a server; converting an answer never blocks the event loop;
- a server that went away is started again, or waited for; when it stays away, every later request fails at once.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agentrl.core.errors import InfraError, UserError
from agentrl.engines.scores import ServerScores, TokenScores, checked_scores
from agentrl.engines.servers import Replica
from agentrl.engines.servers.client import MAX_RETRIES
from agentrl.engines.servers.remote_engine import MAX_STARTS
from agentrl.http.client import RequestRefused, ServerLost
from agentrl.trajectory.medium import Medium

if TYPE_CHECKING:
    import torch

    from agentrl.training.model.handle import ModelHandle

CONCURRENT = 64
"""Requests to a server at a time."""
PROBED = 64
"""Tokens whose texts are compared with those of a server."""
CHUNK = 256
"""Tokens whose probabilities of the whole vocabulary are in memory at once."""


class Teacher(Protocol):
    """Scores given tokens."""

    async def top_k(
        self, ids: Sequence[int], mask: Sequence[int], k: int, media: Sequence[Medium] = ()
    ) -> TokenScores:
        """The log-probs of the tokens of `ids` [T] where `mask` is 1, and the `k` likeliest in place of each; k = 0:
        none. Raises InfraError, and UserError for a teacher that cannot work."""

    async def close(self) -> None:
        """Stop it."""


class ServerTeacher(Teacher):
    """A teacher on a server."""

    def __init__(
        self, name: str, replica: Replica, tokenizer: Any, *, vocabulary: int, patience: float, timeout: float | None
    ) -> None:
        """`tokenizer`, `vocabulary`: the policy's, and its number of tokens. `patience`: seconds for a start of the
        server; `timeout`: for a request."""
        self.name, self.replica, self.tokenizer, self.vocabulary = name, replica, tokenizer, vocabulary
        self.patience, self.timeout = patience, timeout
        self._slots, self._starting = asyncio.Semaphore(CONCURRENT), asyncio.Lock()
        self._failure: InfraError | None = None

    async def top_k(
        self, ids: Sequence[int], mask: Sequence[int], k: int, media: Sequence[Medium] = ()
    ) -> TokenScores:
        wanted, sent = _wanted(mask), np.asarray(ids)
        if not len(wanted):
            return TokenScores.blank(len(sent), k)
        first, end = int(wanted[0]), int(wanted[-1]) + 1
        async with self._slots:
            answer = await self._asked(sent[:end].tolist(), media, first, k)
        scores = await asyncio.to_thread(
            checked_scores, answer, sent[:end], wanted, first, k=k, vocabulary=self.vocabulary
        )
        return scores.padded(len(sent))

    async def close(self) -> None:
        await self.replica.close()

    async def _asked(self, ids: list[int], media: Sequence[Medium], first: int, k: int) -> ServerScores:
        """The server's answer, after several tries where it goes away. Raises InfraError."""
        lost: InfraError | None = None
        for _ in range(MAX_RETRIES):
            await self._serve()
            try:
                return await self._score(ids, media, first, k)
            except (ServerLost, RequestRefused) as error:
                if isinstance(error, RequestRefused) and (error.status < 500 or await self.replica.answers()):
                    raise
                self.replica.serving, lost = False, error
        raise InfraError(f"given up after {MAX_RETRIES} tries: {lost}")

    async def _score(self, ids: list[int], media: Sequence[Medium], first: int, k: int) -> ServerScores:
        try:
            return await self.replica.backend.score(self.replica.http, ids, media, first, k, self.timeout)
        except (TypeError, ValueError, LookupError, AttributeError) as error:  # it is another's server
            raise InfraError(f"{self.replica.url} returns no log-probs of given tokens: {error!r}") from error

    async def _serve(self) -> None:
        """Wait until the server answers; one that the run started is started again, a few times."""
        async with self._starting:
            if self._failure is not None:
                raise self._failure
            if self.replica.serving:
                return
            try:
                if self.replica.starts >= MAX_STARTS:
                    raise InfraError(f"{self.replica.url} died {MAX_STARTS} times; its log says why")
                self.replica.launch()
                await self.replica.ready(self.patience)
                await self._compare_texts()
            except InfraError as error:
                self._failure = error
                raise
            self.replica.serving = True

    async def _compare_texts(self) -> None:
        """Raises UserError for a server whose tokens are others than the policy's; one without a tokenizer of its own,
        as the run starts it, gives no texts."""
        ids = np.linspace(0, len(self.tokenizer) - 1, PROBED).astype(int).tolist()
        for entry in (await self._score(ids, (), 1, 0)).given:
            token, theirs = entry[1], entry[2]
            ours = self.tokenizer.decode([token])
            if isinstance(theirs, str) and theirs.strip() and ours.isascii() and theirs.strip() != ours.strip():
                raise other_tokens(self.name, token, theirs, ours)


class LocalTeacher(Teacher):
    """A teacher in this process: it scores one trajectory at a time, in a thread."""

    def __init__(self, model: "ModelHandle", device: "torch.device") -> None:
        from agentrl.training.model.head.logprobs import TokenLogprobs

        model.module.requires_grad_(False).eval()
        self.reader, self.device = TokenLogprobs(model), device
        self._turn = asyncio.Lock()

    async def top_k(
        self, ids: Sequence[int], mask: Sequence[int], k: int, media: Sequence[Medium] = ()
    ) -> TokenScores:
        async with self._turn:
            try:
                return await asyncio.to_thread(self._scores, ids, mask, k, media)
            except (RuntimeError, ValueError, LookupError) as error:  # the model's own code, or the GPU
                raise InfraError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Nothing runs."""

    def _scores(self, ids: Sequence[int], mask: Sequence[int], k: int, media: Sequence[Medium]) -> TokenScores:
        import torch

        from agentrl.training.model.head.logprobs import single_sequence

        wanted, scores = _wanted(mask), TokenScores.blank(len(ids), k)
        batch = single_sequence(ids, mask, media).to(self.device)
        with torch.no_grad():
            read = self.reader.readout(batch)
            for places, hidden in zip(
                np.split(wanted, range(CHUNK, len(wanted), CHUNK)), read.hidden[: len(wanted)].split(CHUNK), strict=True
            ):
                logits = hidden if read.weight is None else torch.nn.functional.linear(hidden, read.weight, read.bias)
                logprobs = logits.float().log_softmax(-1)
                tokens = batch.ids[torch.from_numpy(places).to(self.device)]
                scores.logprobs[places] = logprobs.gather(-1, tokens[:, None])[:, 0].cpu().numpy()
                best = logprobs.topk(k)
                scores.topk_logprobs[places], scores.topk_ids[places] = best.values.cpu(), best.indices.cpu()
        return scores


def check_tokens(name: str, teacher: Any, policy: Any) -> None:
    """Raises UserError for a teacher's tokenizer that has other tokens than the policy's."""
    texts = {token: text for text, token in teacher.get_vocab().items()}
    for ours, token in policy.get_vocab().items():
        if texts.get(token, ours) != ours:
            raise other_tokens(name, token, texts[token], ours)


def other_tokens(name: str, token: int, theirs: str, ours: str) -> UserError:
    """The error for a teacher with another tokenizer."""
    return UserError(
        f"teachers.{name}: token {token} is {theirs!r} there and {ours!r} for the policy: a teacher scores the policy's "
        "own tokens, so take one with the policy's tokenizer"
    )


def _wanted(mask: Sequence[int]) -> NDArray[np.intp]:
    """The places of the tokens to score; the first token has nothing before it."""
    wanted = np.flatnonzero(np.asarray(mask))
    return wanted[wanted > 0]
