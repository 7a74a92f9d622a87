"""The journal of a session: its turns and rewards, a line each, with which it goes on after a restart.

Invariants: the cost of a turn grows with its new tokens alone; a session that is read has the tokens that were written,
no text is encoded again; a line that a killed process or a full disk has cut spoils no other one.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl.core.json_text import to_json
from agentrl.gateway.ledger_branch import LedgerBranch, Pending, SampledTokens
from agentrl.trajectory.medium import media_of

if TYPE_CHECKING:
    from agentrl.gateway.ledger_tree import LedgerTree

FACTS = ("schemas", "model", "role", "trained", "shared")
COLUMNS = ("ids", "logprobs", "versions")


def append(file: Path, line: Mapping[str, Any]) -> None:
    """Write one line; images become data URLs."""
    file.parent.mkdir(exist_ok=True)
    with file.open("a", encoding="utf-8") as journal:
        journal.write(f"\n{to_json(line, lambda medium: medium.data_url())}\n")  # the line before may be cut


def lines(file: Path) -> Iterator[dict[str, Any]]:
    """The whole lines."""
    if not file.exists():
        return
    with file.open("rb") as journal:
        for text in journal:
            with suppress(ValueError):
                yield json.loads(text)


def plain_turn(pending: Pending, sampled: SampledTokens) -> dict[str, Any]:
    """The place of a turn and its tokens as plain data."""
    turn, branch = pending.turn, pending.branch
    new = {"ids": list(pending.ids), "branch": {name: getattr(branch, name) for name in FACTS}}
    place = new if turn is None else {"after": turn.name, "segments": list(pending.segments)}
    experts = [(rows.dtype.name, rows.shape, b64encode(rows.tobytes()).decode()) for rows in sampled.experts]
    tokens = {name: getattr(sampled, name) for name in COLUMNS} | {"experts": experts}
    return place | {"new": pending.new, "digest": pending.digest.hex(), "number": pending.number, "sampled": tokens}


def read_turn(plain: Mapping[str, Any], tree: "LedgerTree") -> tuple[Pending, SampledTokens]:
    """A turn that goes on in the ledgers of `tree`."""
    new, turn = tree.chat.see(plain["new"]), tree.answers.get(plain.get("after", ""))
    branch = LedgerBranch(**plain["branch"]) if turn is None else turn.branch
    if turn is not None:
        turn.continued = True
    media, digest = [*branch.ledger.media, *media_of(new)], bytes.fromhex(plain["digest"])
    place = plain.get("ids", []), media, new, digest, turn, plain.get("segments", [])
    sampled = SampledTokens(**plain["sampled"])
    sampled.experts = [np.frombuffer(b64decode(data), kind).reshape(shape) for kind, shape, data in sampled.experts]
    return Pending(branch, *place, number=plain["number"]), sampled
