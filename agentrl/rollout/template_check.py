"""Compares finished conversations with the chat template's rendering of them.

Invariant: the sampled tokens are trained on in any case; a mismatch is logged and counted.
"""

import logging
from collections.abc import Sequence

from agentrl.chat import Chat
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.trajectory import Outcome, Trajectory

log = logging.getLogger(__name__)


def record_mismatches(chat: Chat, trajectory: Trajectory) -> None:
    """Write where the template would render the conversation differently into `extra["template_mismatch"]`."""
    if trajectory.outcome is Outcome.INFRA_ERROR or not trajectory.templated:
        return
    prompt = len(trajectory.row.prompt)
    turns = [i for i, message in enumerate(trajectory.messages) if i >= prompt and message["role"] == "assistant"]
    answered = [ledger for ledger in trajectory.ledgers if ledger.model_tokens]
    mismatches = [found for ledger in answered if (found := _mismatch(chat, trajectory, ledger, turns))]
    if mismatches:
        trajectory.extra["template_mismatch"] = "; ".join(mismatches)
        log.debug("%s: %s", trajectory.key, mismatches)


def _mismatch(chat: Chat, trajectory: Trajectory, ledger: Ledger, turns: Sequence[int]) -> str:
    """The difference between a ledger and the template's rendering up to its last turn; "" without one.

    Only the first sample of a group is traced: tracing may cost more than the conversation itself.
    """
    last = ledger.turns[-1]
    messages = trajectory.messages[: turns[last] + 1] if last < len(turns) else trajectory.messages
    messages = [message for message in messages if message.get("side", ledger.side) == ledger.side]
    trace = trajectory.sample == 0
    ids, prompt = ledger.ids, ledger.prompt_length
    mismatch = chat.check_trajectory(messages, ids, trajectory.schemas, trace=trace, prompt=prompt)
    return "" if mismatch is None else str(mismatch)
