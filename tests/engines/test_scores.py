"""Log-probs that a teacher's server returns: hostile until they are checked."""

from typing import Any

import numpy as np
import pytest

from agentrl.core.errors import InfraError, UserError
from agentrl.engines.scores import checked_scores
from agentrl.engines.teachers import check_tokens
from agentrl.engines.vllm.backend import scores_of

IDS = np.array([5, 6, 7, 8, 9])
WANTED = np.array([2, 4])
GIVEN = [[-1.0, 7, None], [-2.0, 8, None], [1e-6, 9, None]]
LIKELIEST = [[[-0.5, 1, None], [-1.0, 7, None]]] * 3


def checked(given: Any = GIVEN, likeliest: Any = LIKELIEST, k: int = 2) -> Any:
    return checked_scores((given, likeliest), IDS, WANTED, k=k, vocabulary=10)


def test_only_the_wanted_tokens_have_scores() -> None:
    scores = checked()
    np.testing.assert_array_equal(scores.logprobs, np.array([np.nan, np.nan, -1, np.nan, 0], np.float32))
    assert scores.topk_ids[WANTED].tolist() == [[1, 7], [1, 7]]
    assert (scores.topk_ids.dtype, scores.topk_logprobs.dtype) == (np.int32, np.float32)
    assert checked(likeliest=(), k=0).topk_ids.shape == (5, 0)


@pytest.mark.prevents("a policy trains on a teacher's scores of other tokens")
@pytest.mark.parametrize(
    "given",
    [
        GIVEN[:1],
        [[-1.0, 6, None], *GIVEN[1:]],
        [[float("nan"), 7, None], *GIVEN[1:]],
        [[float("-inf"), 7, None], *GIVEN[1:]],
        [[0.5, 7, None], *GIVEN[1:]],
        [[None, 7, None], *GIVEN[1:]],
        [["x", 7, None], *GIVEN[1:]],
        [[-1.0, 1 << 80, None], *GIVEN[1:]],
        [[-1.0], *GIVEN[1:]],
        {"a": 1},
        None,
    ],
)
def test_a_hostile_answer_is_an_infrastructure_error(given: Any) -> None:
    with pytest.raises(InfraError, match="teacher's"):
        checked(given)


@pytest.mark.parametrize(
    "row",
    [
        [[-0.5, 1, None]],
        [[-0.5, 1, None], [-1.0, 1, None]],
        [[-0.5, 1, None], [-1.0, 10, None]],
        [[-0.5, -1, None], [-1.0, 2, None]],
        [[-0.5, 1, None], [float("nan"), 2, None]],
        None,
        [],
    ],
)
def test_hostile_likeliest_tokens_are_one_too(row: Any) -> None:
    with pytest.raises(InfraError):
        checked(likeliest=[row] * 3)


def test_vllm_ranks_the_given_token_among_the_likeliest_or_behind_them() -> None:
    def one(logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": "x"}

    found = [{"3": one(-0.1, 1), "4": one(-3.0, 2), "9": one(-7.0, 40)}, {"4": one(-0.2, 1), "3": one(-2.0, 2)}]
    given, likeliest = scores_of(found, [9, 3], 2)
    assert given == [(-7.0, 9, "x"), (-2.0, 3, "x")]
    assert likeliest == [[(-0.1, 3, "x"), (-3.0, 4, "x")], [(-0.2, 4, "x"), (-2.0, 3, "x")]]


def test_another_tokenizer_is_refused_in_a_line() -> None:
    check_tokens("big", {1: "a", 2: " b", 7: "z"}, {1: "a", 2: "b", 3: "c"})
    with pytest.raises(UserError, match=r"teachers.big: token 2 is 'x' there and 'b' for the policy"):
        check_tokens("big", {1: "a", 2: "x"}, {1: "a", 2: "b"})
