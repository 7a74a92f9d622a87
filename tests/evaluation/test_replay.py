"""A stored trajectory from a turn on: its row, with the messages before that turn."""

import pytest

from agentrl.core.errors import UserError
from agentrl.evaluation.settings import replayed
from agentrl.trajectory.row import Row

TALK = [
    {"role": "user", "content": "17 * 23?"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "x", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "a", "content": "391"},
    {"role": "assistant", "content": "It is 391."},
]
RECORD = {"uid": "f:2", "key": "3/f:2/0", "prompt": TALK[:1], "messages": TALK}
ROWS = [Row(f"f:{i}", TALK[:1], extra_info={"index": i}) for i in range(4)]


@pytest.mark.parametrize(("turn", "seen"), [(1, 1), (2, 3)])
def test_the_prompt_goes_on_to_the_turn(turn, seen):
    (row,) = replayed(ROWS, RECORD, turn)
    assert (row.uid, row.prompt, row.extra_info) == ("f:2", TALK[:seen], {"index": 2})
    assert ROWS[2].prompt == TALK[:1]


def test_a_row_of_a_validation_set_is_found():
    (row,) = replayed(ROWS, RECORD | {"uid": "hard:f:2"}, 1)
    assert row.uid == "f:2"


def test_turns_of_the_prompt_are_not_counted():
    (row,) = replayed(ROWS, RECORD | {"prompt": TALK[:3]}, 1)
    assert row.prompt == TALK[:3]


def test_a_turn_or_a_row_that_is_not_there():
    with pytest.raises(UserError, match="--from-turn 3: 3/f:2/0 has 2 turns"):
        replayed(ROWS, RECORD, 3)
    with pytest.raises(UserError, match="f:2 is not among the rows"):
        replayed(ROWS[:1], RECORD, 1)
