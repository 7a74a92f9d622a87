"""The names that users' files import from verl: all there without it, and what the functions behind them say."""

import importlib
import subprocess
import sys

import pytest

from agentrl.verl import modules, scores

NAMES = [(module, name) for module, names in modules.table().items() for name in names]


@pytest.fixture(autouse=True)
def provided():
    modules.provide()


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda part: part)
def test_every_name_leads_to_something(module, name):
    assert getattr(importlib.import_module(module), name) is not None


def test_importing_them_costs_no_pytorch():
    code = (
        "import sys; from agentrl.verl import provide; provide(); from verl.utils.hdfs_io import copy, makedirs; "
        "from verl.utils.rollout_trace import rollout_trace_op; import verl.workers.reward_manager; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_is_not_there_is_named():
    with pytest.raises(ImportError, match="RayPPOTrainer"):
        exec("from verl.utils import RayPPOTrainer", {})


def test_scores_of_the_well_known_data_sets():
    assert scores.gsm8k("so\n#### 1,234", "1234") == 1.0
    assert scores.gsm8k("so 1234", "1234") == 0.0
    assert scores.gsm8k("so 1234", "1234", method="flexible") == 1.0
    assert scores.gsm8k_solution("#### 1,234 hens") == "1234"
    assert scores.gsm8k_solution("no answer 5") is None
    assert scores.math_dapo(r"so \boxed{34}", "34", strict_box_verify=True) == {"score": 1.0, "acc": True, "pred": "34"}
    assert scores.math_dapo("Answer: 34", "35")["score"] == -1.0
    assert scores.search_r1("<answer>The Moon!</answer>", {"target": ["moon"]}) == 1.0
    assert scores.search_r1("<answer>Mars</answer>", {"target": ["moon"]}, format_score=0.1) == 0.1
    assert scores.geo3k(r"<think>a</think> \boxed{5}", "5") == 1.0
    assert scores.default_compute_score("openai/gsm8k", "#### 3", "3") == 1.0
    with pytest.raises(NotImplementedError, match="mine"):
        scores.default_compute_score("mine", "", "")


@pytest.mark.parametrize(
    ("text", "boxed", "inside"),
    [
        (r"a \boxed{1} then \boxed{\frac{1}{2}} end", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and an open \boxed{2", r"\boxed{1}", "1"),
    ],
)
def test_what_stands_in_a_box(text, boxed, inside):
    assert scores.last_boxed_only_string(text) == boxed
    assert scores.remove_boxed(boxed) == inside


def test_no_box():
    assert scores.last_boxed_only_string("none") is None
    with pytest.raises(ValueError, match="boxed"):
        scores.remove_boxed("none")
