"""Reward managers as people wrote them for verl: one trajectory at a time, or all of a step."""

import asyncio
from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.config.checks.algorithm import reward_kwargs
from agentrl.core.errors import UserError
from agentrl.core.plugins import load_user_file
from agentrl.doctor.preflight import check_plugins
from agentrl.rewards.checks import something_scores
from agentrl.rewards.function import load_reward_function
from agentrl.rewards.managers import manager_class
from agentrl.rollout.building import scorer as scorer_of
from agentrl_verl.config_views import verl_config
from agentrl_verl.custom_managers import custom_manager
from tests.rewards.test_scorer import WORDS, decode, scorer, trajectory
from tests.rollout.scripted import tokenizer

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
        return scorer(None, manager=custom_manager(kind, fn, {}, **settings, timeout=60.0, workers=2))

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
    mine = ["reward.reward_manager.source=importlib", "reward.reward_manager.name=Mine"]
    with pytest.raises(UserError, match=r"a class of your own with reward\.reward_manager\.module\.path"):
        check_plugins(compose(mine, config_name="train", checks=()))


async def test_a_loop_s_own_score_stands():
    subject = trajectory(reward=0.25)
    await scorer(lambda **_: 1 / 0).score(subject)
    assert (subject.reward, subject.error) == (0.25, None)


ASKING = """
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.workers.reward_manager.abstract import AbstractRewardManager
import torch


class Asks(RewardManagerBase):
    def __init__(self, config, tokenizer, compute_score, reward_router_address=None, reward_model_tokenizer=None):
        super().__init__(config, tokenizer, compute_score)
        self.address, self.read = reward_router_address, reward_model_tokenizer

    async def run_single(self, data):
        factor = self.config.reward.reward_kwargs.factor
        said = self.compute_score(data_source="openai/gsm8k", solution_str="#### 7", ground_truth="7")
        told = {"asked": f"{self.address} {self.read is not None}"}
        return {"reward_score": factor * said, "reward_extra_info": told}


class Older(AbstractRewardManager):
    def __init__(self, tokenizer, num_examine, compute_score=None, reward_fn_key="data_source", factor=1.0):
        super().__init__(tokenizer, num_examine, compute_score, reward_fn_key)
        self.factor = factor

    def __call__(self, data, return_dict=False):
        texts = [self.tokenizer.decode(item.batch["responses"]) for item in data]
        scores = self.compute_score(texts=texts)
        rewards = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        rewards[:, -1] = self.factor * torch.tensor(scores)
        return {"reward_tensor": rewards} if return_dict else rewards


def in_its_words(texts):
    return [0.25] * len(texts)


async def graded(data_source, solution_str, ground_truth, extra_info, reward_router_address, reward_model_tokenizer):
    return {"score": 1.0, "asked": f"{reward_router_address} {reward_model_tokenizer.eos_token}"}
"""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The reward and the extra values that a run's scorer gives, with these settings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asking.py").write_text(ASKING)
    tokenizer().save_pretrained(tmp_path / "judge")

    async def asked(*overrides):
        config = compose(["model.path=m", "data.train_files=null", *overrides], config_name="train", checks=())
        something_scores(config.reward, config.rollout, config.data)
        check_plugins(config)
        subject = trajectory()
        await scorer_of(config, Tokenizer(), None).score(subject)
        assert subject.error is None
        return subject.reward, subject.reward_extra.get("asked")

    return asked


def own(name):
    return f"reward.reward_manager.name={name}", "reward.reward_manager.module.path=asking.py"


SERVED = ("reward.reward_model.enable=true", "reward.reward_model.url=http://there:30000/v1")


async def test_a_manager_of_ones_own_needs_no_function_and_gets_its_arguments(asked):
    assert await asked(*own("Asks"), "reward.reward_kwargs={factor: 0.5}") == (0.5, "None False")
    assert await asked(*own("Asks"), "reward_model.reward_kwargs={factor: 2.0}", *SERVED) == (2.0, "there:30000 False")


async def test_and_calls_a_function_in_its_own_words(asked):
    function = ("reward.custom_reward_function.path=asking.py", "reward.custom_reward_function.name=in_its_words")
    assert await asked(*own("Older"), *function, "reward.reward_kwargs={factor: 2.0}") == (0.5, None)


async def test_a_generative_reward_model_is_asked_by_the_function(asked):
    function = ("reward.custom_reward_function.path=asking.py", "reward.custom_reward_function.name=graded")
    model = "reward.reward_model.model_path=judge"
    assert await asked(*function, model, *SERVED) == (1.0, f"there:30000 {tokenizer().eos_token}")
    with pytest.raises(
        UserError, match=r"graded asks a generative reward model .* reward.reward_model.url to the HOST"
    ):
        await asked(*function)


def test_arguments_without_a_manager_of_ones_own_are_refused():
    settings = ["reward.reward_kwargs={factor: 2.0}"]
    with pytest.raises(UserError, match="those of the reward function are"):
        compose(settings, config_name="train", checks=[reward_kwargs])


async def test_the_manager_gdpo_gives_the_name_of_the_run(tmp_path):
    (tmp_path / "score.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return {'score': 1.0, 'format': float(extra_info['experiment_name'] == 'qwen')}\n"
    )
    settings = ["reward.reward_manager.name=gdpo", "trainer.experiment_name=qwen", "algorithm.adv_estimator=gdpo"]
    settings += ["algorithm.gdpo_reward_keys=[format]", f"reward.custom_reward_function.path={tmp_path / 'score.py'}"]
    config = compose([*settings, "model.path=m", "data.train_files=x"], config_name="train", checks=(reward_kwargs,))
    subject = trajectory()
    await scorer_of(config, tokenizer(), WORDS).score(subject)
    assert (subject.reward, subject.reward_extra["format"]) == (1.0, 1.0)
