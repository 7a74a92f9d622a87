"""Reward managers as people wrote them for verl: one trajectory at a time, or all of a step."""

import asyncio
from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.config.checks.algorithm import reward_manager
from agentrl.core.errors import UserError
from agentrl.core.plugins import load_user_file
from agentrl.rewards import load_reward_function
from agentrl.rewards.managers import manager_class
from agentrl_verl.config_views import verl_config
from agentrl_verl.custom_managers import custom_manager
from tests.rewards.test_scorer import WORDS, decode, scorer, trajectory

FILE = Path(__file__).parent / "files" / "reward_managers.py"
FUNCTION = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    return bonus + len(solution_str.split())
"""


class Tokenizer:
    pad_token_id = 0

    def decode(self, ids, skip_special_tokens=False):
        return decode([int(i) for i in ids])


@pytest.fixture
def scores(tmp_path):
    """A scorer with that manager."""
    (tmp_path / "score.py").write_text(FUNCTION)
    config = verl_config(compose(["data.max_response_length=12"], config_name="train", checks=()))

    def scores(kind):
        fn = load_reward_function(str(tmp_path / "score.py"), "compute_score", {"bonus": 0.5})
        settings = {"config": config, "tokenizer": Tokenizer(), "reward_fn_key": "data_source"}
        return scorer(None, manager=custom_manager(kind, fn, **settings, timeout=60.0, workers=2))

    return scores


async def test_run_single_in_a_file_of_ones_own(scores):
    subject = trajectory()
    kind = manager_class("ShortAnswers", str(FILE))
    await scores(kind).score(subject)
    words = 6  # of the whole response, the tool's and the user's among them, as verl's managers see it
    assert subject.reward == pytest.approx(0.5 + words + 0.1 * (1 - 6 / 12))
    assert subject.reward_extra["short"] == 0.5


async def test_all_of_a_step_at_once_by_a_registered_name(scores):
    load_user_file(FILE, where="test")
    judge = scores(manager_class("step_average", None))
    subjects = [trajectory(), trajectory()]
    subjects[1].ledgers[0].ids[-1] = WORDS.index("hint")
    judge.expect([subject.key for subject in subjects])
    await asyncio.gather(*(judge.score(subject) for subject in subjects))
    texts = [decode(subject.ledgers[0].ids[1:]) for subject in subjects]
    assert [subject.reward_extra["letters"] for subject in subjects] == [len(text) for text in texts]
    assert [round(s.reward, 4) for s in subjects] == [round(6.5 + len(text) / 1000, 4) for text in texts]


async def test_ready_made_ones_under_agentrl_s_names_are_agentrl_s():
    assert manager_class("naive", None) is None


def test_mistakes():
    with pytest.raises(UserError, match="no such manager"):
        manager_class("nobody", None)
    with pytest.raises(UserError, match="choose naive"):
        compose(["reward.reward_manager.name=naiv"], config_name="train", checks=[reward_manager])
    mine = ["reward.reward_manager.source=importlib", "reward.reward_manager.name=Mine"]
    with pytest.raises(UserError, match=r"a class of your own with reward\.reward_manager\.module\.path"):
        compose(mine, config_name="train", checks=[reward_manager])


async def test_a_loop_s_own_score_stands():
    subject = trajectory(reward=0.25)
    await scorer(lambda **_: 1 / 0).score(subject)
    assert (subject.reward, subject.error) == (0.25, None)
