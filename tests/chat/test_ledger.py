"""What a ledger refuses: each broken invariant is named by its token, however fast it was found."""

import pytest

from agentrl.trajectory.ledger import Ledger, LedgerError, Source


def whole() -> Ledger:
    made = Ledger()
    made.append_prompt([1, 2])
    made.append_model([3, 4], [-0.5, 0.0], turn=0, version=0)
    made.append_observation([5], Source.TOOL, turn=0)
    made.append_model([6], [-0.1], turn=1, version=7)
    made.check()
    return made


@pytest.mark.parametrize(
    ("column", "place", "value", "told"),
    [
        ("mask", 4, 1, "token 4: mask 1 but source TOOL"),
        ("mask", 2, 0, "token 2: mask 0 but source MODEL"),
        ("sources", 1, int(Source.USER), "token 1: source USER on the wrong side"),
        ("sources", 4, int(Source.PROMPT), "token 4: source PROMPT on the wrong side"),
        ("logprobs", 3, 0.1, "token 3: sampled with log-prob 0.1"),
        ("logprobs", 3, float("nan"), "token 3: sampled with log-prob nan"),
        ("logprobs", 2, float("-inf"), "token 2: sampled with log-prob -inf"),
        ("versions", 5, -1, "token 5: sampled with log-prob -0.1 by weights -1"),
        ("logprobs", 4, -0.1, "token 4: not sampled, yet log-prob -0.1"),
        ("logprobs", 4, float("nan"), "token 4: not sampled, yet log-prob nan"),
        ("versions", 0, 0, "token 0: not sampled, yet log-prob 0.0, version 0"),
        ("turns", 5, -1, "turns go backwards"),
    ],
)
def test_a_broken_token_is_named(column: str, place: int, value: float, told: str) -> None:
    ledger = whole()
    getattr(ledger, column)[place] = value
    with pytest.raises(LedgerError, match=told):
        ledger.check()


def test_columns_that_are_out_of_step() -> None:
    ledger = whole()
    ledger.logprobs.pop()
    with pytest.raises(LedgerError, match=r"out of step: lengths \[5, 6\]"):
        ledger.check()
    with pytest.raises(LedgerError, match="prompt is empty"):
        Ledger().check()
