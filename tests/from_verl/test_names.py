"""The names that users' files import from verl: all there without it, and what the functions behind them say."""

import importlib
import subprocess
import sys

import pytest

from agentrl_verl import modules

pytestmark = pytest.mark.integration

NAMES = [(module, name) for module, names in modules.table().items() for name in names]


@pytest.fixture(autouse=True)
def provided():
    modules.provide()


def test_every_name_leads_to_something():
    missing = [(module, name) for module, name in NAMES if getattr(importlib.import_module(module), name, None) is None]
    assert missing == []


def test_importing_them_costs_no_pytorch():
    code = (
        "import sys; from agentrl_verl.modules import provide; provide(); "
        "from verl.utils.hdfs_io import copy, makedirs; "
        "from verl.utils.rollout_trace import rollout_trace_op; import verl.workers.reward_manager; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_is_not_there_is_named():
    with pytest.raises(ImportError, match="RayPPOTrainer"):
        exec("from verl.utils import RayPPOTrainer", {})


def test_scores_of_the_well_known_data_sets():
    """Case by case they are compared with verl's in tests/from_verl/scorers."""
    score = importlib.import_module("verl.utils.reward_score")
    assert score.gsm8k.compute_score("so 1234", "1234", method="flexible") == 1.0
    assert score.gsm8k.extract_solution("#### 1,234 hens") == "1234"
    assert score.math_dapo.compute_score(r"so \boxed{34}", "34", strict_box_verify=True)["acc"]
    assert score.search_r1_like_qa_em.compute_score("<answer>Mars</answer>", {"target": "x"}, format_score=0.1) == 0.1
    assert score.default_compute_score("openai/gsm8k", "#### 3", "3") == 1.0
    assert score.get_default_compute_score("naive") is score.default_compute_score
    with pytest.raises(NotImplementedError, match="mine"):
        score.default_compute_score("mine", "", "")
