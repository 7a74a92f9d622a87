"""Loading reward functions: verl's contract, checked before anything runs."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.core.errors import UserError
from agentrl.rewards.function import load_reward_function

SOURCE = """
import math_rules

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return math_rules.WEIGHT * kwargs.get("scale", 1)

async def later(data_source, solution_str, ground_truth, extra_info=None, scale=1.0): return 1.0
def structured(data_source, solution_str, ground_truth, trajectory): return 1.0
def batched(data_sources, solution_strs, ground_truths, extra_infos): return 1.0
def greedy(data_source, solution_str, ground_truth, extra_info, judge): return 1.0
def short(solution_str, ground_truth): return 1.0
class Judge:
    def __call__(self, data_source, solution_str, ground_truth, extra_info=None): return 1.0
judge = Judge()
table = {}
"""

GIVEN = {"data_source": "d", "solution_str": "s", "ground_truth": "g", "extra_info": {}, "trajectory": object()}


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "math_rules.py").write_text("WEIGHT = 2.0\n")
    (tmp_path / "score.py").write_text(SOURCE)
    return str(tmp_path / "score.py")


def test_a_function_by_file_and_name_that_imports_its_neighbour(file: str) -> None:
    fn = load_reward_function(file, "compute_score", {"scale": 3})
    assert fn is not None
    assert fn.arguments(GIVEN) == {
        "data_source": "d",
        "solution_str": "s",
        "ground_truth": "g",
        "extra_info": {},
        "scale": 3,
    }
    assert fn.function(**fn.arguments(GIVEN)) == 6.0


@pytest.mark.parametrize(
    ("name", "asks_for"),
    [("later", {"extra_info"}), ("structured", {"trajectory"}), ("judge", {"extra_info"})],
)
def test_what_a_function_asks_for(file: str, name: str, asks_for: set[str]) -> None:
    fn = load_reward_function(file, name, {})
    assert fn is not None
    assert fn.accepted == asks_for


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("agentrl.rewards.scorers", "final_number"),
        ("pkg://agentrl.rewards.scorers", "final_number"),
        (None, "agentrl.rewards.scorers:final_number"),
    ],
)
def test_ready_made_functions_by_module(path: str | None, name: str) -> None:
    fn = load_reward_function(path, name, {})
    assert fn is not None
    assert fn.function(**fn.arguments(GIVEN | {"solution_str": "so 4", "ground_truth": 4})) == 1.0


def test_none_set() -> None:
    assert load_reward_function(None, "compute_score", {}) is None


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("nope", {}, r"custom_reward_function.name: .* has no 'nope': it has compute_score, later"),
        ("table", {}, r"table in .* is no function but a dict"),
        (
            "short",
            {},
            r"short\(solution_str, ground_truth\) does not fit \(got an unexpected keyword argument 'data_source'\)",
        ),
        ("batched", {}, r"batched\(.*\) does not fit .*; make it batched\(data_source, solution_str, ground_truth"),
        ("greedy", {}, r"does not fit \(missing a required argument: 'judge'\)"),
        ("later", {"scal": 1}, r"does not fit \(got an unexpected keyword argument 'scal'\); make it .*scal=..."),
        ("later", {"extra_info": 1}, r"reward_kwargs.extra_info is set by agentrl itself; take it out"),
    ],
)
def test_mistakes_in_one_line_before_any_rollout(file: str, name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_reward_function(file, name, kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("nowhere.py", "f", r"custom_reward_function.path: nowhere.py does not exist"),
        ("no.such.module", "f", r"custom_reward_function.path: no.such.module: ModuleNotFoundError"),
        (None, "final_number", r"final_number names no file; set reward.custom_reward_function.path"),
        ("{tmp}/broken.py", "f", r"broken.py: SyntaxError"),
        ("{tmp}/raises.py", "f", r"raises.py: KeyError: 'HOME_OF_NOTHING'"),
    ],
)
def test_modules_that_do_not_load(tmp_path: Path, path: str | None, name: str, message: str) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "raises.py").write_text("import os\nos.environ['HOME_OF_NOTHING']\n")
    with pytest.raises(UserError, match=message):
        load_reward_function(path and path.format(tmp=tmp_path), name, {})
