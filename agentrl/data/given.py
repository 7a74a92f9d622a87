"""Rows as Python objects: lists of dicts, data sets of Hugging Face, any iterable.

Invariant: a row's uid is its place, `rows:<number>` from 1, so the same rows give the same uids after a restart; a
`Row` keeps its own, numbered where it is given again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.core.errors import UserError
from agentrl.data.lazy import LazyRows, distinct_rows
from agentrl.data.media import MEDIA_KEYS, MediaKeys
from agentrl.data.rows import READ, make_row
from agentrl.trajectory.row import Row

QUESTIONS = ("question", "problem", "messages")
"""Columns that stand in for the prompt's where there is none."""
ANSWER = "answer"
"""The column that stands in for `ground_truth`."""


class GivenRows(LazyRows):
    """Rows out of records, each made when asked for."""

    def __init__(
        self,
        records: Sequence[Any],
        *,
        name: str,
        prompt_key: str,
        reward_fn_key: str,
        media_keys: MediaKeys = MEDIA_KEYS,
        interaction: bool = False,
    ) -> None:
        """`name`: of the argument, for messages. `interaction`: rows that name none meet the run's only one."""
        self.records = records
        self.name = name
        self.prompt_key = prompt_key
        self.reward_fn_key = reward_fn_key
        self.media_keys = media_keys
        self.interaction = interaction

    def __len__(self) -> int:
        return len(self.records)

    def row(self, place: int) -> Row:
        uid, record = f"{self.name}:{place + 1}", self.records[place]
        if not isinstance(record, Mapping | Row):
            raise UserError(f"{uid} is a {type(record).__name__}: pass dicts, such as {EXAMPLE}")
        row = record if isinstance(record, Row) else self._made(record, uid)
        if self.interaction and row.interaction_kwargs is None:
            return replace(row, extra_info=row.extra_info | {"interaction_kwargs": {"name": None}})
        return row

    def _made(self, record: Mapping[str, Any], uid: str) -> Row:
        return make_row(
            completed(record, uid, self.prompt_key, self.media_keys),
            uid,
            prompt_key=self.prompt_key,
            reward_fn_key=self.reward_fn_key,
            media_keys=self.media_keys,
        )


EXAMPLE = '{"prompt": "What is 2 + 3?", "answer": "5"}'


def given_rows(
    given: Iterable[Any],
    *,
    name: str,
    prompt_key: str,
    reward_fn_key: str,
    media_keys: MediaKeys = MEDIA_KEYS,
    interaction: bool = False,
) -> Sequence[Row]:
    """The rows of a list, a data set, or whatever else can be iterated. Raises UserError, for the first 100 at once."""
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise UserError(f"{name} is a {type(given).__name__}: pass a list of dicts, such as [{EXAMPLE}]")
    indexed = hasattr(given, "__len__") and hasattr(given, "__getitem__") and not hasattr(given, "iloc")
    if hasattr(given, "to_dict") and hasattr(given, "iloc"):  # a DataFrame, which iterates over its columns' names
        given = given.to_dict("records")
    records: Any = given if indexed else list(given)
    rows = GivenRows(
        records,
        name=name,
        prompt_key=prompt_key,
        reward_fn_key=reward_fn_key,
        media_keys=media_keys,
        interaction=interaction,
    )
    if not len(rows):
        raise UserError(f"{name} is empty: pass a list of dicts, such as [{EXAMPLE}]")
    for place in range(min(len(rows), 100)):
        rows[place]
    mine = isinstance(records, list | tuple) and any(isinstance(record, Row) for record in records)
    return distinct_rows([rows])[0] if mine else rows


def numbered(records: Iterable[Any], name: str = "rows") -> Iterator[tuple[str, Any]]:
    """Each with its uid."""
    return ((f"{name}:{number}", record) for number, record in enumerate(records, 1))


def completed(
    record: Mapping[str, Any], uid: str, prompt_key: str = "prompt", media_keys: MediaKeys = MEDIA_KEYS
) -> dict[str, Any]:
    """A record with the columns that a row is made of. Raises UserError without a prompt.

    `question`, `problem` or `messages` serve as the prompt and `answer` as the ground truth. A record without
    `extra_info` gets one of its further columns, where the reward function finds them.
    """
    made = dict(record)
    for name in QUESTIONS:
        if prompt_key not in made and name in made:
            made[prompt_key] = made.pop(name)
    if prompt_key not in made:
        raise UserError(f"{uid} has no {prompt_key!r}: it has {', '.join(map(str, record))}; write such as {EXAMPLE}")
    if ANSWER in made and made.get("ground_truth") is None and made.get("reward_model") is None:
        made["ground_truth"] = made.pop(ANSWER)
    if made.get("extra_info") is None:
        known = {*READ, prompt_key, "ground_truth", *media_keys.values()}
        made["extra_info"] = {key: value for key, value in made.items() if key not in known}
    return made
