"""Finished trajectories as plain data, for checkpoints: loading them runs no code.

Token columns become bytes, images PNG, everything else one JSON text. Objects that JSON does not know become their
repr: training reads none of them.
"""

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.core.json_text import to_json
from agentrl.trajectory.ledger import KINDS, TEACHER_COLUMNS, Ledger
from agentrl.trajectory.medium import Medium, media_places
from agentrl.trajectory.picture import open_picture
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Span, ToolCallRecord, Trajectory, TurnReward

NUMBERS = ("prompt_length", "side", "teacher", "teacher_prompt")
"""Plain fields of a ledger."""
RECORDS = {"tool_calls": ToolCallRecord, "turn_rewards": TurnReward, "spans": Span}
NO_ROW = Row("", [])
FAST = 1
"""Compression of PNG: the higher levels take several times as long."""


Numbers = dict[Medium, int]
"""Images and videos of several trajectories by number, each once: those of a group share their prompt's."""


def saved_groups(rows: dict[str, Any]) -> dict[str, Any]:
    """The state of a stream of rows with its finished trajectories as plain data."""
    media: Numbers = {}
    groups = changed_groups(rows, lambda trajectory: to_plain(trajectory, media))
    return groups | {"media": [plain_medium(medium) for medium in media]}


def restored_groups(rows: dict[str, Any]) -> dict[str, Any]:
    """The state that `saved_groups` made plain; the trajectories have no row."""
    media = [medium_from(**plain) for plain in rows.get("media", ())]
    return changed_groups(rows, lambda plain: from_plain(plain, NO_ROW, media))


def changed_groups(rows: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The state of a stream with each finished trajectory changed."""

    def changed(batch: dict[str, Any]) -> dict[str, Any]:
        return batch | {"finished": {i: change(each) for i, each in batch["finished"].items()}}

    return rows | {"queue": [changed(batch) for batch in rows.get("queue", ())]}


def to_plain(trajectory: Trajectory, media: Numbers) -> dict[str, Any]:
    """The trajectory without its row; its images and videos go to `media`."""
    names = [f.name for f in fields(trajectory) if f.name not in ("row", "ledgers", "advantages", *RECORDS)]
    values = {name: getattr(trajectory, name) for name in names}
    values |= {name: [asdict(record) for record in getattr(trajectory, name)] for name in RECORDS}
    return {
        "values": to_json(values),
        "ledgers": [_plain_ledger(ledger, media) for ledger in trajectory.ledgers],
        "shown": [(i, j, _number(medium, media)) for i, j, medium in media_places(trajectory.messages)],
    }


def from_plain(plain: dict[str, Any], row: Row, media: Sequence[Medium]) -> Trajectory:
    """The trajectory of `row` that `to_plain` took apart; `media`: by number."""
    values = json.loads(plain["values"])
    values |= {name: [kind(**record) for record in values[name]] for name, kind in RECORDS.items()}
    values["outcome"] = Outcome(values["outcome"])
    for message, part, number in plain["shown"]:
        values["messages"][message]["content"][part][media[number].kind] = media[number]
    return Trajectory(row, ledgers=[_ledger(each, media) for each in plain["ledgers"]], **values)


def _plain_ledger(ledger: Ledger, media: Numbers) -> dict[str, Any]:
    columns = {name: getattr(ledger, name).numpy().tobytes() for name in KINDS}
    numbers = {name: getattr(ledger, name) for name in NUMBERS}
    scores = {name: getattr(ledger, name) for name in TEACHER_COLUMNS}
    arrays = {name: _plain_array(column) for name, column in scores.items() if column is not None}
    experts = [_plain_array(rows) for rows in ledger.experts]
    shown = {"media": [_number(m, media) for m in ledger.media], "experts": experts}
    return columns | numbers | shown | {"scores": arrays}


def _number(medium: Medium, media: Numbers) -> int:
    return media.setdefault(medium, len(media))


def _plain_array(rows: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return rows.dtype.name, rows.shape, rows.tobytes()


def _array(kind: str, shape: Sequence[int], data: bytes) -> NDArray[Any]:
    return np.frombuffer(data, kind).reshape(shape)


def _ledger(plain: dict[str, Any], media: Sequence[Medium]) -> Ledger:
    columns: dict[str, Any] = {name: array(kind, plain[name]).tolist() for name, kind in KINDS.items()}
    shown = [media[number] for number in plain["media"]]
    experts = [_array(*rows) for rows in plain.get("experts", ())]
    scores: dict[str, Any] = {name: _array(*column) for name, column in plain.get("scores", {}).items()}
    numbers = {name: plain[name] for name in NUMBERS if name in plain}
    return Ledger(**columns, **numbers, **scores, media=shown, experts=experts)


def plain_medium(medium: Medium) -> dict[str, Any]:
    """An image or a video as bytes, numbers and tensors."""
    pictures = [] if medium.source is None else [_png(frame) for frame in medium.frames]
    values = {name: getattr(medium, name) for name in ("kind", "text", "ids", "short")}
    return values | {"types": dict(medium.types), "features": dict(medium.features), "pictures": pictures}


def medium_from(pictures: Sequence[bytes], **values: Any) -> Medium:
    """The medium that `plain_medium` took apart."""
    frames = [_picture(each) for each in pictures]
    return Medium(source=frames if values["kind"] == "video" else next(iter(frames), None), **values)


def _png(image: Any) -> bytes:
    buffer = BytesIO()
    image.convert("RGB").save(buffer, format="PNG", compress_level=FAST)
    return buffer.getvalue()


def _picture(png: bytes) -> Any:
    image = open_picture(BytesIO(png))
    image.load()
    return image
