"""One `generate` on its way: what it drew so far, over as many requests as it took."""

from dataclasses import dataclass, field

from agentrl.core.errors import InfraError
from agentrl.engines.engine import FinishReason, Generation
from agentrl.engines.servers.backend import Answer
from agentrl.trajectory.medium import Medium


@dataclass(eq=False)
class InFlightRequest:
    """Invariant: one log-prob and one version for each token."""

    key: str
    media: tuple[Medium, ...] = ()
    """Of the prompt."""
    rid: str = ""
    """Of the request on the wire."""
    ended: bool = False
    """Somebody asked for it to return what it has."""
    retries: int = 0
    """Requests that got no answer."""
    timeouts: int = 0
    """Those of them that took longer than they may."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    candidates: tuple[tuple[int, float], ...] = ()

    def take(self, answer: Answer, version: int) -> None:
        """Add what a request drew. Raises InfraError where tokens and log-probs do not match."""
        if len(answer.token_ids) != len(answer.logprobs):
            raise InfraError(f"{len(answer.token_ids)} tokens came with {len(answer.logprobs)} log-probs")
        self.candidates = self.candidates if self.token_ids else answer.candidates
        self.token_ids += answer.token_ids
        self.logprobs += answer.logprobs
        self.versions += [version] * len(answer.token_ids)

    def generation(self, reason: FinishReason, version: int) -> Generation:
        """What the caller gets; `version` is the present one."""
        return Generation.of(self.token_ids, self.logprobs, reason, self.versions, self.candidates, present=version)
