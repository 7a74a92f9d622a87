"""The reward model: the score transformers gives, however conversations are gathered; trouble is never a 0."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification

from agentrl.chat.template import Template
from agentrl.config.schema import Reward, RewardModel, RewardNetwork
from agentrl.core.errors import InfraError, UserError
from agentrl.rewards.scorer import Scorer
from agentrl.training.model.reward_model import Conversations, Judge, RewardWorker
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.chat.realia import template, tokenizer
from tests.training.tiny import CPU, SIZES, VOCABULARY, ledger, trajectory

LENGTHS = [7, 1, 12, 4, 9]
FAR = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
"""Frequencies that the longest sequence of a row changes: such a model computes one sequence a pass."""


def classifier(
    folder: Path, kind: str = "qwen2", *, labels: int = 1, **fields: object
) -> AutoModelForSequenceClassification:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**(SIZES | {"num_labels": labels} | fields))
    module = AutoModelForSequenceClassification.from_config(config).eval()
    torch.nn.init.normal_(module.score.weight)
    module.save_pretrained(folder)
    return module


def settings(folder: Path, *, input_tokenizer: str | None = None, **more: object) -> RewardModel:
    model = RewardNetwork(path=str(folder), dtype="float32", input_tokenizer=input_tokenizer)
    return RewardModel(enable=True, model=model, **more)


def worker_of(reward_model: RewardModel) -> RewardWorker:
    return RewardWorker(reward_model, Judge(reward_model, device=CPU), policy_vocabulary=VOCABULARY)


def conversations() -> list[Trajectory]:
    return [trajectory(ledger(n, 2, seed=n), uid=str(n), reward=None) for n in LENGTHS]


def scores(worker: RewardWorker, trajectories: list[Trajectory]) -> list[float]:
    async def all_of_them() -> list[float]:
        return await asyncio.gather(*map(worker, trajectories))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize(("kind", "fields"), [("qwen2", {}), ("llama", {"rope_parameters": FAR})])
def test_a_score_equals_transformers_score_of_the_conversation(kind: str, fields: dict, tmp_path: Path) -> None:
    module = classifier(tmp_path, kind, **fields)
    judge = Judge(settings(tmp_path), device=CPU)
    assert judge.packed == (kind == "qwen2")
    module.config.pad_token_id = None
    ids = [t.ledgers[0].ids for t in conversations()]
    alone = [module(input_ids=torch.tensor([row])).logits.item() for row in ids]
    assert judge(ids) == pytest.approx(alone, abs=1e-5)
    assert max(alone) - min(alone) > 0.01


def test_waiting_conversations_share_a_batch_within_the_budget(tmp_path: Path) -> None:
    classifier(tmp_path)
    worker = worker_of(settings(tmp_path, forward_max_token_len_per_gpu=30))
    passes: list[list[int]] = []
    judge = worker.judge

    def watched(ids: list[list[int]]) -> list[float]:
        passes.append([len(row) for row in ids])
        return judge(ids)

    worker.judge = watched  # type: ignore[assignment]
    trajectories = conversations()
    found = scores(worker, trajectories)
    assert found == pytest.approx(judge([t.ledgers[0].ids for t in trajectories]), abs=1e-5)
    assert all(sum(lengths) <= 30 for lengths in passes)
    assert len(passes) < len(trajectories)


def test_it_adds_to_the_reward_with_its_weight_and_its_failure_masks_the_sample(tmp_path: Path) -> None:
    classifier(tmp_path)
    worker = worker_of(settings(tmp_path))
    reward = Reward(tool_weight=0.0, interaction_weight=0.0, reward_model=RewardModel(weight=0.5))
    scorer = Scorer(None, reward, str, reward_model=worker)
    good, bad = conversations()[:2]
    asyncio.run(scorer.score(good))
    assert good.reward == pytest.approx(0.5 * good.reward_extra["reward_model"])
    assert good.reward_extra["reward_model"] == pytest.approx(worker.judge([good.ledgers[0].ids])[0])
    bad.ledgers[0].ids[1] = VOCABULARY + 5  # no such token: the network itself fails
    asyncio.run(scorer.score(bad))
    assert bad.outcome is Outcome.INFRA_ERROR
    assert bad.reward is None
    assert "the reward model failed" in (bad.error or "")


def test_with_a_tokenizer_of_its_own_it_reads_the_conversation_in_its_own_words(tmp_path: Path) -> None:
    theirs = tokenizer("qwen")
    theirs.chat_template = template("chatml_tools")
    theirs.save_pretrained(tmp_path)
    classifier(tmp_path, vocab_size=len(theirs))
    read = Conversations(settings(tmp_path, input_tokenizer="policy"), vocabulary=len(theirs), policy_vocabulary=10**6)
    made = conversations()[0]
    made.messages = [
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 2}'}}]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "It is 4."},
    ]
    text = theirs.decode(read(made))
    assert text.index("What is 2 + 2?") < text.index("add") < text.index("It is 4.")
    assert "<|im_start|>user" in text
    read.template = Template(theirs, "{{ raise_exception('no') }}")
    with pytest.raises(InfraError, match="the reward model's chat template fails"):
        read(made)


def test_of_a_long_conversation_it_reads_the_end() -> None:
    read = Conversations(RewardModel(max_length=4), vocabulary=VOCABULARY, policy_vocabulary=VOCABULARY)
    made = conversations()[2]
    assert read(made) == made.ledgers[0].ids[-4:]


def test_models_with_other_labels_or_vocabularies_are_refused(tmp_path: Path) -> None:
    classifier(tmp_path, labels=2)
    with pytest.raises(UserError, match="has 2 labels; a reward model has 1"):
        Judge(settings(tmp_path), device=CPU)
    with pytest.raises(UserError, match=r"knows 97 tokens, the policy has 500; set .*input_tokenizer"):
        Conversations(RewardModel(), vocabulary=97, policy_vocabulary=500)
