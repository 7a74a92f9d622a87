"""From rows with images to an update, through tools that answer with images; and a run that learns what it sees."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import agentrl
from agentrl.chat import Chat
from agentrl.config import compose
from agentrl.config.schema import Actor, Model
from agentrl.core.errors import InfraError
from agentrl.data import read_rows
from agentrl.engines.engine import Generation, Sampling
from agentrl.engines.hf import HFEngine
from agentrl.interactions import load_interactions
from agentrl.rollout.episode import Limits
from agentrl.rollout.loops import RolloutContext, ToolAgent
from agentrl.rollout.window import StalenessWindow
from agentrl.tools import ToolResponse, function_tool, load_tools
from agentrl.tracking.dumps.jsonl import load_trajectories, write_trajectories
from agentrl.train import train
from agentrl.training import load_model, load_processor
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.model.value_model import TokenValues, load_value_model
from agentrl.training.update.actor import PolicyActor
from agentrl.trajectory.ledger import Source
from agentrl.trajectory.medium import Medium
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.media import vision_model
from tests.media.test_sources import png
from tests.training.tiny import packed

pytestmark = pytest.mark.integration

CPU = torch.device("cpu")
CALL = '<tool_call>{"name": "look", "arguments": {"colour": "COLOUR"}}</tool_call><|im_end|>'


@function_tool
def look(colour: str) -> ToolResponse:
    """Look at a picture.

    Args:
        colour: Its colour.
    """
    if colour == "broken":
        return ToolResponse(image=[b"no png"])
    return ToolResponse(text="here", image=[vision_model.picture(colour, (84, 28)), png("green", (28, 28))])


class CallsFirst:
    """The hf engine, but that each conversation begins with a call of the tool."""

    def __init__(self, chat: Chat, engine: HFEngine, colour: str) -> None:
        self.chat, self.engine, self.called = chat, engine, set[str]()
        self.call = CALL.replace("COLOUR", colour)

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        if key in self.called:
            return await self.engine.generate(token_ids, sampling, key=key, media=media)
        self.called.add(key)
        ids = self.chat.template.encode(self.call)
        return Generation(ids, [-1.0] * len(ids), "stop", 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model.folder(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def module(place: Path) -> Any:
    return load_model(Model(path=str(place)), device=CPU, seed=0).module


def environment(place: Path, engine: Any, colour: str, **limits: Any) -> RolloutContext:
    tokenizer = vision_model.load(place)
    chat = Chat(tokenizer, processor=load_processor(Model(path=str(place)), tokenizer))
    tools = load_tools(None, __file__, max_response=100, unit="characters", side="right", tokenizer=tokenizer)
    bounds = {"prompt_length": 2048, "response_length": 512, "model_length": 4096, "assistant_turns": 2} | limits
    first: Any = CallsFirst(chat, engine, colour)
    return RolloutContext(first, chat, tools, load_interactions(None), Limits(**bounds))


def row_of(folder: Path) -> Any:
    ask = [{"role": "user", "content": "<image>what is it?"}]
    file = folder / "rows.parquet"
    pq.write_table(pa.table({"prompt": [ask], "images": [[{"bytes": png("red", (56, 56))}]]}), file)
    return read_rows(file)[0]


async def rolled(
    place: Path, module: Any, row: Any, count: int = 2, colour: str = "blue", **limits: Any
) -> tuple[RolloutContext, list[Trajectory]]:
    engine = HFEngine(module, max_num_seqs=8, max_model_len=4096)
    await engine.start()
    try:
        env = environment(place, engine, colour, **limits)
        done = [Trajectory(row, f"1/{row.uid}/{i}", i, reward=float(i)) for i in range(count)]
        await asyncio.gather(*(ToolAgent(env).run(t, Sampling(5, seed=i)) for i, t in enumerate(done)))
    finally:
        await engine.close()
    return env, done


async def test_a_tool_s_images_are_read_trained_on_and_dumped(tmp_path: Path, place: Path, module: Any) -> None:
    env, done = await rolled(place, module, row_of(tmp_path))
    pad = env.chat.template.token_id("<|image_pad|>")
    for trajectory in done:
        (ledger,) = trajectory.ledgers
        ledger.check()
        assert trajectory.turns == 2
        assert [len(m.ids) for m in ledger.media] == [4, 3, 1]
        where = [ledger.sources[i] for i, token in enumerate(ledger.ids) if token == pad]
        assert where == [Source.PROMPT] * 4 + [Source.TOOL] * 4
        assert not any(made for made, token in zip(ledger.mask, ledger.ids, strict=True) if token == pad)
        assert env.chat.check_trajectory(trajectory.messages, ledger.ids, trajectory.schemas) is None
        assert [part["type"] for part in trajectory.messages[2]["content"]] == ["image", "image", "text"]
    # The prompt's image was processed once for the group.
    assert done[0].ledgers[0].media[0] is done[1].ledgers[0].media[0]

    batch = packed(*done)
    with torch.no_grad():
        scored, _ = TokenLogprobs(module)(batch)
    second = torch.tensor([turn == 1 for t in done for turn in t.ledgers[0].turns]) & batch.mask
    assert int(second.sum()) >= 2
    assert float((scored - batch.rollout_logprobs)[second].abs().max()) < 1e-5

    dump = tmp_path / "1.jsonl"
    write_trajectories(dump, 1, done, env.chat.decode)
    part = load_trajectories(dump)[0]["messages"][2]["content"][0]
    assert part["image"].startswith("data:image/jpeg;base64,")
    assert len(dump.read_text()) < 60_000


async def test_limits_end_a_conversation(tmp_path: Path, place: Path, module: Any) -> None:
    for limits in ({"images": 2}, {"response_length": 70}):
        _, (trajectory,) = await rolled(place, module, row_of(tmp_path), count=1, **limits)
        assert trajectory.finish == "length"
        assert len(trajectory.ledgers[0].media) == 1
        assert trajectory.ledgers[0].mask[-1]


async def test_a_picture_that_a_tool_broke_is_no_reward(tmp_path: Path, place: Path, module: Any) -> None:
    with pytest.raises(InfraError, match="an image cannot be read"):
        await rolled(place, module, row_of(tmp_path), count=1, colour="broken")


async def test_actor_and_critic_learn_from_the_same_batch(tmp_path: Path, place: Path) -> None:
    module = load_model(Model(path=str(place)), device=CPU, seed=0).module
    _, done = await rolled(place, module, row_of(tmp_path))
    batch = packed(*done)
    batch.advantages = torch.randn(batch.num_tokens) * batch.mask
    actor = PolicyActor(module, actor=Actor(), temperature=1.0, device=CPU, total_steps=1)
    assert actor.update(batch)["actor/grad_norm"] > 0
    values = load_value_model(Model(path=str(place)), device=CPU, seed=0)
    with torch.no_grad():
        values.base.score.weight.normal_(0, 0.1)
        (together,) = TokenValues(values)(batch)
        values.base.set_attn_implementation("sdpa")
        (alone,) = TokenValues(values)(batch)
    assert torch.allclose(together, alone, atol=1e-5)
    assert together.abs().max() > 0.01


def colour_score(trajectory: Trajectory, ground_truth: str, **_: Any) -> float:
    """The share of tokens from the half of the vocabulary that stands for the colour."""
    ledger = trajectory.ledgers[0]
    drawn = [token for token, made in zip(ledger.ids, ledger.mask, strict=True) if made]
    low = sum(token < 135 for token in drawn) / len(drawn)
    return low if ground_truth == "red" else 1 - low


def colour_rows(folder: Path, count: int) -> Path:
    rows = [
        {
            "data_source": "colours",
            "prompt": [{"role": "user", "content": "<image>"}],
            "images": [{"bytes": png(colour, (28, 28))}],
            "reward_model": {"style": "rule", "ground_truth": colour},
        }
        for _ in range(count)
        for colour in ("red", "blue")
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "colours.parquet")
    return folder / "colours.parquet"


@pytest.mark.parametrize("steps", [2, pytest.param(35, marks=pytest.mark.slow)])
def test_the_reward_of_what_is_seen_is_learnt(tmp_path: Path, steps: int) -> None:
    """Nothing but the picture says which answers are good: at a blind model's best the score is one half."""
    file = colour_rows(tmp_path, 4)
    place = vision_model.folder(tmp_path / "model", std=0.25)
    config = compose(
        [
            f"model.path={place}",
            "model.dtype=float32",
            f"data.train_files={file}",
            "data.train_batch_size=8",
            "data.max_prompt_length=64",
            "data.max_response_length=6",
            "actor.ppo_mini_batch_size=8",
            "actor.optim.lr=1e-2",
            "rollout.name=hf",
            "rollout.n=8",
            "rollout.ignore_eos=true",
            f"reward.custom_reward_function.path={__file__}",
            "reward.custom_reward_function.name=colour_score",
            "trainer.device=cpu",
            f"trainer.total_training_steps={steps}",
            f"trainer.save_freq={steps}",
            "trainer.val_before_train=false",
            f"trainer.default_local_dir={tmp_path / 'run'}",
        ]
    )
    train(config)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    rewards = [line["rollout/reward_mean"] for line in lines]
    assert rewards[0] < 0.6
    assert steps < 35 or sum(rewards[-3:]) / 3 > 0.75
    assert max(line["rollout_gap/mean"] for line in lines) < 1e-4
    saved = next((tmp_path / "run").glob("**/huggingface"))
    tokenizer = vision_model.load(saved)
    processor = load_processor(Model(path=str(saved)), tokenizer)
    assert isinstance(processor.medium("image", {"image": vision_model.picture()}), Medium)


def test_finished_trajectories_with_images_are_in_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batches are begun with the first step and finished before the second: the resumed run samples none."""
    widest = lambda most, batch, _=0: StalenessWindow(most, batch, most)  # noqa: E731
    monkeypatch.setattr("agentrl.rollout.stream.StalenessWindow", widest)
    scored: list[str] = []

    def reward(data_source: str, solution_str: str, ground_truth: str) -> float:
        scored.append(ground_truth)
        return float(len(solution_str) % 2)

    settings = {
        "model": {"path": vision_model.folder(tmp_path / "model"), "dtype": "float32"},
        "data": {"train_batch_size": 1, "max_prompt_length": 64, "max_response_length": 4},
        "actor.ppo_mini_batch_size": 1,
        "rollout.n": 2,
        "trainer": {"total_training_steps": 3, "save_freq": 1, "max_staleness": 2, "device": "cpu"},
        "trainer.default_local_dir": tmp_path / "run",
    }
    prompt = [{"role": "user", "content": "<image> what?"}]
    rows = [
        {"prompt": prompt, "images": [{"bytes": png(c, (28, 28))}], "reward_model": {"ground_truth": c}}
        for c in ("red", "blue", "green")
    ]
    with agentrl.training(settings, rows=rows, reward=reward) as run:
        for step in run:
            deadline = time.monotonic() + 60
            while len(scored) < 6 and time.monotonic() < deadline:
                time.sleep(0.01)
            if step.number == 2:
                break
    with agentrl.training(settings, rows=rows, reward=reward) as run:
        (step,) = run
    assert len(scored) == 6
    assert [len(t.ledgers[0].media) for t in step.trajectories] == [1, 1]


@pytest.mark.parametrize("before", [3, 0])
async def test_an_image_s_token_that_the_model_writes_is_its_own_mistake(
    tmp_path: Path, place: Path, before: int
) -> None:
    env = environment(place, None, "blue")
    pad = env.chat.template.token_id("<|image_pad|>")

    class Scribbles:
        async def generate(self, token_ids: list[int], sampling: Sampling, **_: Any) -> Generation:
            ids = [*env.chat.template.encode("a b c")[:before], pad, 5]
            return Generation(ids, [-1.0] * len(ids), "stop", 0)

    scribbling = replace(env, engine=Scribbles())
    trajectory = Trajectory(row_of(tmp_path), "1/r/0", 0)
    await ToolAgent(scribbling).run(trajectory, Sampling(9))
    assert (trajectory.outcome, trajectory.finish, trajectory.turns) == (Outcome.MODEL_ERROR, "max_errors", 1)
    assert "stands for an image" in trajectory.error
    (ledger,) = trajectory.ledgers
    ledger.check()
    assert ledger.model_tokens == before
    trajectory.reward = 0.0
    assert trajectory.trainable == (before > 0)
