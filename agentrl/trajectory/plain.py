"""Finished trajectories as plain data, for checkpoints: loading them runs no code.

Token columns become bytes, everything else one JSON text. Objects that JSON does not know become their repr: training
reads none of them.
"""

import json
from array import array
from dataclasses import asdict, fields
from typing import Any

from agentrl.core.json_text import to_json
from agentrl.trajectory.ledger import KINDS, Ledger
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Span, ToolCallRecord, Trajectory, TurnReward

RECORDS = {"tool_calls": ToolCallRecord, "turn_rewards": TurnReward, "spans": Span}


def to_plain(trajectory: Trajectory) -> dict[str, Any] | None:
    """The trajectory without its row; None for one with images or videos, which cannot be plain data."""
    if any(ledger.media for ledger in trajectory.ledgers):
        return None
    names = [f.name for f in fields(trajectory) if f.name not in ("row", "ledgers", *RECORDS)]
    values = {name: getattr(trajectory, name) for name in names}
    values |= {name: [asdict(record) for record in getattr(trajectory, name)] for name in RECORDS}
    return {"values": to_json(values), "ledgers": [_plain_ledger(ledger) for ledger in trajectory.ledgers]}


def from_plain(plain: dict[str, Any], row: Row) -> Trajectory:
    """The trajectory of `row` that `to_plain` took apart."""
    values = json.loads(plain["values"])
    values |= {name: [kind(**record) for record in values[name]] for name, kind in RECORDS.items()}
    values["outcome"] = Outcome(values["outcome"])
    return Trajectory(row, ledgers=[_ledger(each) for each in plain["ledgers"]], **values)


def _plain_ledger(ledger: Ledger) -> dict[str, Any]:
    columns = {name: getattr(ledger, name).numpy().tobytes() for name in KINDS}
    return columns | {"prompt_length": ledger.prompt_length}


def _ledger(plain: dict[str, Any]) -> Ledger:
    columns: dict[str, Any] = {name: array(kind, plain[name]).tolist() for name, kind in KINDS.items()}
    return Ledger(**columns, prompt_length=plain["prompt_length"])
