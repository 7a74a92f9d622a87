"""A `generate` in flight: the tokens drawn so far, by one or more HTTP requests."""

from dataclasses import dataclass, field

from agentrl.core.errors import InfraError
from agentrl.engines.engine import FinishReason, Generation
from agentrl.engines.servers.backend import Answer
from agentrl.trajectory.medium import Medium


@dataclass(eq=False)
class InFlightRequest:
    """One call of `generate`. Invariant: each token has one log-prob and one version."""

    key: str
    media: tuple[Medium, ...] = ()
    """Of the prompt."""
    rid: str = ""
    """Id of the current HTTP request."""
    ended: bool = False
    """It was aborted, and returns the tokens it has."""
    retries: int = 0
    """HTTP requests that got no answer."""
    timeouts: int = 0
    """Those of them that exceeded the timeout."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    candidates: tuple[tuple[int, float], ...] = ()

    def take(self, answer: Answer, version: int) -> None:
        """Add the tokens of an answer. Raises InfraError when tokens and log-probs do not match."""
        if len(answer.token_ids) != len(answer.logprobs):
            raise InfraError(f"{len(answer.token_ids)} tokens came with {len(answer.logprobs)} log-probs")
        self.candidates = self.candidates if self.token_ids else answer.candidates
        self.token_ids += answer.token_ids
        self.logprobs += answer.logprobs
        self.versions += [version] * len(answer.token_ids)

    def generation(self, reason: FinishReason, version: int) -> Generation:
        """The result; `version` is the current one."""
        return Generation.of(self.token_ids, self.logprobs, reason, self.versions, self.candidates, present=version)
