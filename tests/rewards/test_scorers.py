"""The ready-made reward functions."""

import json
import subprocess
import sys
from typing import Any

import pytest

from agentrl.rewards import scorers
from agentrl.rewards.gym import make_dataset, score_answer

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("solution", "truth", "score"),
    [
        ("The answer is 2146.", "2146", 1.0),
        ("37 * 58 = 2,146", "2146", 1.0),
        ('{"expression": "37 * 58"}\nThe answer is 2146.', 2146, 1.0),
        ("#### -12.50", "-12.5", 1.0),
        ("It is 10-3", "3", 1.0),
        ("2146 is wrong, it is 2147", "2146", 0.0),
        ("I do not know", "2146", 0.0),
        ("", "0", 0.0),
    ],
)
def test_final_number(solution: str, truth: Any, score: float) -> None:
    assert scorers.final_number("", solution, truth) == score


@pytest.mark.parametrize(
    ("solution", "truth", "score"),
    [
        ("I looked it up.\nAlma Falkani", "Alma Falkani", 1.0),
        ("The answer is alma  falkani.", "Alma Falkani", 1.0),
        ("Answer: 1,382", "1382", 1.0),
        ("Alma Falkani or Bruno Kelaez", "Alma Falkani", 0.0),
        ('Alma Falkani\n{"query": "more"}', "Alma Falkani", 0.0),
        ("", "x", 0.0),
    ],
)
def test_exact_match(solution: str, truth: str, score: float) -> None:
    assert scorers.exact_match("", solution, truth) == score


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("<answer>1</answer> no, <answer> 2\n</answer> done", "2"),
        ("so\n#### 7\nbye", "7"),
        ("first\nlast \n", "last"),
        ("", ""),
    ],
)
def test_extract_answer(solution: str, answer: str) -> None:
    assert scorers.extract_answer(solution) == answer


@pytest.mark.parametrize("name", ["chain_sum", "countdown", "gcd", "leg_counting", "simple_equations"])
def test_reasoning_gym_gives_its_own_verdict(name: str) -> None:
    entry = make_dataset(name, seed=3, size=1)[0]
    note = {"name": name, "config": "{}", "entry": json.dumps(entry)}
    right = {"extra_info": {"reasoning_gym": note}, "ground_truth": entry["answer"], "data_source": ""}
    assert scorers.reasoning_gym(solution_str=f"I think <answer>{entry['answer']}</answer>", **right) == 1.0
    assert scorers.reasoning_gym(solution_str="<answer>nothing</answer>", **right) < 0.1


def test_countdown_accepts_any_expression_that_works() -> None:
    entry = {"question": "", "answer": "3 + 4", "metadata": {"numbers": [3, 4], "target": 7}}
    note = {"name": "countdown", "config": "{}", "entry": json.dumps(entry)}
    assert score_answer(note, "4 + 3") == 1.0
    assert score_answer(note, "4 * 3") < 1.0


MISSING = """
from agentrl.core.errors import UserError
from agentrl.rewards.gym import make_dataset
print(len(make_dataset("gcd", size=3)), len(make_dataset("chain_sum", size=2)))
for name in ("chain_smu", "chain_sum"):
    try:
        make_dataset(name, min_terms=0)
    except UserError as error:
        print(error)
"""


def test_mistakes_and_a_fresh_process() -> None:
    """In a process of its own: what earlier tests imported must not be what makes it work."""
    ran = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True)
    sizes, unknown, refused = ran.stdout.strip().splitlines()
    assert sizes == "3 2"
    assert unknown.startswith("reasoning_gym has no task 'chain_smu'; near it: chain_sum")
    assert refused == 'reasoning_gym:chain_sum refuses {"min_terms": 0}: min_terms must be positive'
