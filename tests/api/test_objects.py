"""Python objects in the settings, wherever a name or a path is accepted."""

import linecache
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import agentrl
from agentrl import Parsed
from agentrl.algorithms import estimate
from agentrl.config import to_yaml
from agentrl.config.given import CONTROLLER, KEYS, given_objects
from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl.engines.hf import HFEngine
from agentrl.rollout.loops import AgentLoop

pytestmark = pytest.mark.integration

CALLED: set[str] = set()


def called(name: str) -> None:
    CALLED.add(name)


def loss(logprobs: Any, old_logprobs: Any, advantages: Any) -> Any:
    called("loss")
    return -advantages * (logprobs - old_logprobs).exp()


def estimator(rewards: Any, mask: Any, cu_seqlens: Any, trajectory: Any, group: Any) -> Any:
    called("estimator")
    return estimate("grpo", rewards, mask, cu_seqlens, trajectory, group)[0]


def kl(logprobs: Any, ref_logprobs: Any) -> Any:
    called("kl")
    return (logprobs - ref_logprobs) ** 2


def keep_all(values: Any) -> bool:
    called("filter")
    return True


def in_order(rows: Any) -> list[int]:
    called("sampler")
    return list(range(len(rows)))


def straight(progress: float) -> float:
    called("schedule")
    return 1.0


def momentum(params: Any, lr: float) -> torch.optim.Optimizer:
    called("optimizer")
    return torch.optim.SGD(params, lr=lr, momentum=0.9)


class Once(AgentLoop):
    async def run(self, trajectory: Any, sampling: Any) -> None:
        called("loop")
        episode = self.episode(trajectory, sampling, schemas=[])
        episode.begin()
        await episode.generate()


class Memory:
    """A logger that is made already, and cannot be pickled."""

    def __init__(self) -> None:
        self.lines: list[int] = []
        self.unpicklable = lambda: None

    def log(self, step: int, metrics: Any) -> None:
        called("logger")
        self.lines.append(step)

    def generations(self, step: int, rows: Any) -> None:
        pass

    def close(self) -> None:
        pass


class Watch:
    def __init__(self) -> None:
        self.steps: list[agentrl.Step] = []
        self.seen: list[str] = []

    def start(self, run: Any) -> None:
        self.seen.append(f"start {run.step} of {run.total_steps} in {run.folder.name}")

    def step(self, step: agentrl.Step) -> None:
        self.steps.append(step)

    def validation(self, step: agentrl.Step) -> None:
        self.seen.append(f"validation {step.number} {len(step.trajectories)}")

    def checkpoint(self, step: int, folder: Any) -> None:
        self.seen.append(f"{folder.name} {(folder / 'manifest.json').exists()}")

    def end(self, step: int, error: Any) -> None:
        self.seen.append(f"end {step} {error}")


class Engine(HFEngine):
    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        called("engine")
        return await super().generate(*args, **kwargs)


def parser(text: str, tools: Any = None) -> Parsed:
    called("parser")
    return Parsed(text)


def score(data_source: str, solution_str: str, ground_truth: str) -> float:
    return float(len(solution_str) % 2)


def test_each_kind_in_one_run(settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    memory, watch, seen = Memory(), Watch(), list[int]()
    objects = {
        "algorithm.adv_estimator": estimator,
        "algorithm.filter_groups": {"enable": True, "keep": keep_all},
        "actor.policy_loss.loss_mode": loss,
        "actor.use_kl_loss": True,
        "actor.kl_loss_type": kl,
        "actor.optim": {"optimizer": momentum, "lr_scheduler_type": straight},
        "data.row_sampler": in_order,
        "rollout.agent.default_agent_loop": Once,
        "rollout.name": Engine,
        "rollout.multi_turn.format": parser,
        "trainer.logger": ["file", memory],
        "trainer.callbacks": [watch, lambda step: seen.append(step.number)],
        "trainer.save_freq": 1,
    }
    CALLED.clear()
    result = agentrl.train(settings | objects, rows=rows, validation_rows=rows[:2], reward=score)
    expected = "estimator loss kl filter sampler schedule optimizer loop parser logger engine"
    assert sorted(CALLED) == sorted(expected.split())
    assert memory.lines == [0, 1, 2]
    assert seen == [1, 2]
    assert watch.seen == [
        "start 0 of 2 in run",
        "validation 0 2",
        "global_step_1 True",
        "validation 2 2",
        "global_step_2 True",
        "end 2 None",
    ]
    assert [step.metrics for step in watch.steps] == [
        {k: v for k, v in line.items() if k != "step"} for line in result.history if line["step"]
    ]
    assert all(isinstance(t, agentrl.Trajectory) for step in watch.steps for t in step.trajectories)
    last = result.trajectories[0]
    assert [len(values) for values in last.advantages] == [len(ledger) for ledger in last.ledgers]
    text = (result.run_dir / "config.yaml").read_text()
    assert "loss_mode: '<python: loss>'" in text
    assert "<python: <lambda>>" in text


def test_a_failing_callback_stops_with_a_checkpoint(settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    ends = []

    class Fails:
        def step(self, step: agentrl.Step) -> None:
            raise ValueError("no\ndisk")

        def end(self, step: int, error: BaseException) -> None:
            ends.append((step, type(error)))

    settings["trainer"] |= {"callbacks": [Fails()], "save_freq": 10}
    with pytest.raises(UserError, match=r"<python: Fails>: step failed after step 1: ValueError: no disk \(.*test_obj"):
        agentrl.train(settings, rows=rows, reward=score)
    assert (settings["trainer"]["default_local_dir"] / "checkpoints" / "global_step_1").is_dir()
    assert ends == [(1, UserError)]


def test_true_from_a_step_ends_the_run(settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    settings["trainer"] |= {"callbacks": [lambda step: step.number == 1], "val_before_train": False}
    result = agentrl.train(settings, rows=rows, reward=score)
    assert result.metrics["step"] == 1
    assert result.checkpoint is not None


def test_callbacks_of_sft(settings: dict[str, Any], tmp_path: Any) -> None:
    watch, steps = Watch(), list[int]()
    conversation = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]
    given = {
        "model.path": settings["model.path"],
        "data": {"train_batch_size": 2, "max_length": 512},
        "trainer": {
            "output_dir": tmp_path / "warm",
            "device": "cpu",
            "save_freq": 1,
            "callbacks": [watch, lambda step: steps.append(step.number) or step.number == 2],
        },
        "optim": {"optimizer": "RMSprop", "lr_scheduler_type": straight},
    }
    result = agentrl.sft(given, rows=[{"messages": conversation}] * 8, validation_rows=[{"messages": conversation}])
    assert (steps, result.steps) == ([1, 2], 2)
    assert watch.seen == ["start 0 of 4 in warm", "global_step_1 True", "global_step_2 True", "end 2 None"]
    assert watch.steps[0].metrics["train/loss"] > 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"actor.optim.lr": loss}, "actor.optim.lr=<python: loss>: must be float"),
        ({"actor.policy_loss.options": {"x": [loss]}}, "is a Python object"),
        ({"actor.policy_loss.loss_mode": kl}, r"it takes \(logprobs, ref_logprobs\): write def name"),
        ({"trainer.logger": [Memory]}, "cannot be called with"),
        ({"trainer.callbacks": [object()]}, "has none of its methods"),
        ({"rollout.agent.default_agent_loop": object()}, "is no class"),
    ],
)
def test_a_wrong_object_is_one_line(
    settings: dict[str, Any], rows: list[dict[str, Any]], given: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        agentrl.train(settings | given, rows=rows, reward=score)
    assert "\n" not in str(caught.value)


def composed(**values: Any) -> Config:
    return agentrl.compose({name.replace("__", "."): value for name, value in values.items()}, checks=())


def test_two_objects_of_one_name_are_two() -> None:
    functions: list[Callable[..., Any]] = [lambda step: 1, lambda step: 2]
    config = composed(trainer__callbacks=[*functions, functions[0]])
    assert [item.value for _, item in given_objects(config)] == [*functions, functions[0]]
    assert [str(item) for _, item in given_objects(config)] == [
        *("<python: <lambda>>", "<python: <lambda> 2>", "<python: <lambda>>")
    ]
    assert to_yaml(config).count("<python: <lambda> 2>") == 1


def test_a_config_with_objects_is_copied_and_they_are_not() -> None:
    from agentrl.api.settings import settings

    config = composed()
    watch = Watch()
    config.trainer.callbacks = [watch]  # type: ignore[list-item]
    copy = settings(config, Config, preset="train", config_dir=None)
    (found,) = given_objects(copy)
    assert found[0] == "trainer.callbacks"
    assert found[1].value is watch
    assert config.trainer.callbacks == [watch]
    assert next(given_objects(settings(copy, Config, preset="train", config_dir=None)))[1].value is watch


def test_other_processes_get_the_objects_that_they_use() -> None:
    config = composed(trainer__logger=[Memory()], actor__policy_loss__loss_mode=loss)
    there = pickle.loads(pickle.dumps(config))
    assert next(given_objects(there))[1].value is loss
    assert there.trainer.logger == ["<python: Memory>"]
    assert set(CONTROLLER) <= set(KEYS)


def test_one_that_cannot_travel_is_one_line() -> None:
    from agentrl.runtime.ray import check_travels

    class Locked:
        def __init__(self) -> None:
            self.thread = iter(x for x in [1])

        def __call__(self, logprobs: Any, ref_logprobs: Any) -> Any:
            return logprobs

    with pytest.raises(UserError, match="actor.kl_loss_type=<python: Locked> cannot be sent to other processes") as e:
        check_travels(composed(actor__kl_loss_type=Locked()))
    assert "\n" not in str(e.value)


def test_an_edited_object_is_another_experiment_and_an_edited_callback_is_not() -> None:
    from agentrl.training.checkpoint.contents import contents_of

    def digests(body: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        linecache.cache["<edit>"] = (1, None, [f"def mine(*columns): return {body}\n"], "<edit>")
        exec(compile(linecache.cache["<edit>"][2][0], "<edit>", "exec"), names)
        found = contents_of(composed(actor__policy_loss__loss_mode=names["mine"], trainer__callbacks=[names["mine"]]))
        assert "trainer.callbacks" not in found
        return found["actor.policy_loss.loss_mode"]

    assert digests("1") == digests("1") != digests("2")
