"""A ledger's column reads as the list that it replaces."""

import copy
import itertools
import math
import pickle
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.trajectory.column import BYTE, FLOAT, INT, Column, Runs
from agentrl.trajectory.ledger import Ledger, LedgerError, Source


@pytest.fixture(params=[Column, Runs])
def column(request: pytest.FixtureRequest) -> Column:
    return request.param(INT, [5, 6, 7])


def test_what_lists_do(column):
    assert column == [5, 6, 7] == column
    assert column != [5, 6] and column != (5, 6, 7)  # noqa: PT018
    assert (column[0], column[-1], column[1:], column[::-1]) == (5, 7, [6, 7], [7, 6, 5])
    assert column + [8] == [5, 6, 7, 8]  # noqa: RUF005
    assert [4] + column == [4, 5, 6, 7]  # noqa: RUF005
    assert [*column, *column[:1]] == [5, 6, 7, 5]
    assert (list(column), sum(column), column.index(6), column.count(7), 7 in column) == ([5, 6, 7], 18, 1, 1, True)
    assert isinstance(column[:2], list)
    assert isinstance(column.copy(), list)
    assert (repr(column), bool(column), bool(Column(INT))) == ("[5, 6, 7]", True, False)


def test_it_changes_as_a_list_does(column):
    column.append(8)
    column += [9]
    column.extend((10, np.int64(11)))
    column.extend(column)
    assert column == [*range(5, 12)] * 2
    del column[3:]
    column[1] = -1
    column[:1] = [1, 2]
    assert (column, column.pop(), column) == ([1, 2, -1], 7, [1, 2, -1])


def test_an_entry_of_another_type_is_refused_as_a_whole(column):
    for values in ([1, 2.5], [1, 2**40], [1, "x"]):
        with pytest.raises((TypeError, OverflowError)):
            column.extend(values)
    assert column == [5, 6, 7]
    assert Column(FLOAT, [-0.1, 1]) == [-0.1, 1.0]


def test_arrays_and_tensors_have_the_types_they_have_of_lists(column):
    assert torch.equal(torch.tensor(column), torch.tensor([5, 6, 7]))
    assert torch.tensor([column, column]).dtype is torch.int64
    assert (np.asarray(column).dtype, np.array(Column(FLOAT, [0.5])).dtype) == (np.int64, np.float64)
    held = np.asarray(column)
    column.append(8)  # what users hold does not keep it from growing
    assert held.tolist() == [5, 6, 7]
    assert (column.numpy().dtype, Column(BYTE).numpy().shape) == (np.int32, (0,))
    with pytest.raises(ValueError, match="read-only"):
        column.numpy()[0] = 1


@given(st.lists(st.tuples(st.sampled_from("adersic"), st.integers(-3, 12), st.integers(0, 3)), max_size=30))
def test_runs_are_the_list_that_they_stand_for(changes: list[tuple[str, int, int]]) -> None:
    runs, expected = Runs(INT), list[int]()
    for change, number, value in changes:
        place = number % len(expected) if expected else 0
        match change:
            case "a":
                runs.append(value)
                expected.append(value)
            case "e":
                runs.extend([value, value, number])
                expected.extend([value, value, number])
            case "r":
                runs.repeat(value, number)
                expected.extend([value] * number)
            case "i":
                runs.insert(place, value)
                expected.insert(place, value)
            case "s" if expected:
                runs[place] = value
                expected[place] = value
            case "c":
                runs[place : place + 2] = [value] * 3
                expected[place : place + 2] = [value] * 3
            case "d" if expected:
                del runs[place]
                del expected[place]
        assert (runs, len(runs), list(runs), runs.numpy().tolist()) == (expected, len(expected), expected, expected)
        assert [runs[i] for i in range(-len(expected), len(expected))] == expected * 2
        assert all(
            runs.count(each) == expected.count(each) and (each in runs) == (each in expected) for each in range(4)
        )
    assert pickle.loads(pickle.dumps(runs)) == runs == copy.deepcopy(runs)
    assert runs.numpy().dtype == np.int32
    with pytest.raises(IndexError):
        runs[len(expected)]


def test_a_run_takes_no_memory_for_each_entry() -> None:
    runs = Runs(BYTE, [1])
    runs.repeat(1, 10**9)
    runs.repeat(0, 10**9)
    assert (len(runs), runs[10**9], runs[-1], runs.count(1), len(pickle.dumps(runs)) < 500) == (
        2 * 10**9 + 1,
        1,
        0,
        10**9 + 1,
        True,
    )


def test_ledgers_are_copied_sent_and_compared():
    ledger = Ledger()
    ledger.append_prompt([1, 2])
    ledger.append_model(np.array([3, 4]), [-0.1, -0.2], turn=0, version=[7, 8])
    ledger.append_observation((5,), Source.TOOL, turn=0)
    ledger.append_model([6], [-0.3], turn=1, version=8)
    ledger.check()
    for other in (copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger, protocol=5))):
        assert other == ledger
        other.ids.append(9)
        assert other != ledger
    assert (ledger.turn_ids(), ledger.turn_ends, ledger.model_tokens) == ({0: [3, 4], 1: [6]}, {0: 3, 1: 5}, 3)
    assert (Ledger().turn_ids(), Ledger().turn_ends, Ledger().model_tokens) == ({}, {}, 0)


def test_a_list_that_is_assigned_becomes_a_column():
    ledger = Ledger(ids=[1, 2], mask=[0, 0])
    ledger.versions = [-1, -1]
    assert isinstance(ledger.ids, Column)
    assert isinstance(ledger.versions, Column)
    with pytest.raises(LedgerError, match="out of step"):
        ledger.check()


def test_the_tokens_of_a_turn_are_found_around_others():
    ledger = Ledger()
    ledger.append_prompt([1, 2])
    ledger.append_model([3, 4], [-0.1, -0.2], turn=2, version=0)
    ledger.append_observation([5], Source.TEMPLATE, turn=2)
    assert ledger.turn_ids() == {2: [3, 4]}
    ledger.append_model([6], [-0.1], turn=2, version=0)
    assert ledger.turn_ids() == {2: [3, 4, 6]}


VALUES = {
    "mask": (0, 1, 2, -1),
    "sources": tuple(Source),
    "logprobs": (0.0, -1.0, 1e-4, 0.1, math.nan, math.inf, -math.inf),
    "versions": (-2, -1, 0, 3),
}


@pytest.mark.parametrize("name", VALUES)
def test_each_broken_token_is_found(name: str):
    """The look over whole columns agrees with the look at each token, for every value at every place."""
    for place, value in itertools.product(range(4), VALUES[name]):
        ledger = Ledger()
        ledger.append_prompt([1])
        ledger.append_model([2, 3], [-0.1, 0.0], turn=0, version=0)
        ledger.append_observation([4], Source.USER, turn=0)
        getattr(ledger, name)[place] = value
        first = next((i for i in range(4) if broken(ledger, i)), None)
        with nullcontext() if first is None else pytest.raises(LedgerError, match=f"token {first}: "):
            ledger.check()


def broken(ledger: Ledger, i: int) -> bool:
    mask, source, logprob, version = ledger.mask[i], ledger.sources[i], ledger.logprobs[i], ledger.versions[i]
    sampled = math.isfinite(logprob) and logprob <= 1e-3 and version >= 0
    fits = sampled if source == Source.MODEL else (logprob, version) == (0.0, -1)
    return mask != (source == Source.MODEL) or (source == Source.PROMPT) != (i < 1) or not fits
