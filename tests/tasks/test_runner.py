"""A container around every loop: prepared, set up, verified, stopped, whatever happens in between."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Data, Reward, Rollout
from agentrl.config.schema.rollout import Containers
from agentrl.containers import ContainerSpec, Services
from agentrl.core.errors import InfraError, UserError
from agentrl.core.points import CONTAINER_PROVIDERS, TASK_FORMATS, container_provider, task_format
from agentrl.core.shares import VARIABLE
from agentrl.engines.engine import Sampling
from agentrl.rewards.checks import something_scores
from agentrl.rewards.function import RewardFn
from agentrl.rewards.scorer import Scorer, ScoreSources
from agentrl.rollout.loops import AgentLoop, SingleTurn
from agentrl.rollout.scheduler import Scheduler
from agentrl.tasks import images
from agentrl.tasks.format import TookTooLong, Verdict
from agentrl.tasks.plain import FIELDS, PlainContainer
from agentrl.tasks.runner import TaskRunner
from agentrl.tracking.metrics import rollout_metrics
from agentrl.trajectory.drops import TooManyDrops
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.registries import scoped
from tests.rollout.scripted import Script, environment, row, says
from tests.tasks.local_provider import ROOT, LocalProvider

pytestmark = pytest.mark.integration

SAMPLING = Sampling(64, seed=1)


@pytest.fixture(autouse=True)
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "containers").mkdir()
    monkeypatch.setenv(ROOT, str(tmp_path / "containers"))
    with scoped(CONTAINER_PROVIDERS, TASK_FORMATS):
        container_provider("local")(LocalProvider)
        yield tmp_path
    assert not list((tmp_path / "containers").iterdir())


class Writes(SingleTurn):
    """Writes the model's answer into its container."""

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        await super().run(trajectory, sampling)
        if trajectory.container is not None:
            said = trajectory.messages[-1]["content"]
            await trajectory.container.exec(["tee", "answer"], timeout=10, stdin=said.encode())
        trajectory.extra["task"] = "mine"


class Sleeps(SingleTurn):
    """Answers, and does not end."""

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        await super().run(trajectory, sampling)
        await asyncio.sleep(3600)


class Fails(SingleTurn):
    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        raise InfraError("the engine is down")


def scheduler(
    script: Script, kind: type[AgentLoop] = Writes, function: Any = None, *, retries: int = 0, **options: Any
) -> Scheduler:
    env, _ = environment(script)
    fn = None if function is None else RewardFn(function, "fn", {}, frozenset({"trajectory", "extra_info"}))
    failure = options.pop("on_failure", "mask")
    reward = Reward(num_workers=4, on_failure=failure)
    scorer = Scorer(fn, reward, env.chat.decode, sources=ScoreSources(loops=True))
    settings = Containers(provider="local", max_starting=options.pop("max_starting", 16))
    options = {"max_concurrent": 64, "timeout": 20.0} | options
    tasks = TaskRunner(settings, on_failure=failure)
    return Scheduler(env=env, loop_for=lambda _: kind, scorer=scorer, retries=retries, tasks=tasks, **options)


async def run(scheduler: Scheduler, *rows: Row, n: int = 1) -> list[Trajectory]:
    try:
        return await scheduler.run(rows, n=n, sampling=SAMPLING, tag="1")
    finally:
        await scheduler.tasks.close()


def local(scheduler: Scheduler) -> LocalProvider:
    provider = scheduler.tasks.provider
    assert isinstance(provider, LocalProvider)
    return provider


def contained(uid: str = "r:0", **container: Any) -> Row:
    return row(uid, container={"image": "base", **container})


def text_of(folder: str, name: str) -> str:
    return Path(folder, name).read_text()


async def test_set_up_run_verify_stop() -> None:
    made = scheduler(says("The answer is 5 ."))
    (done,) = await run(made, contained(set_up="echo 5 > wanted", verify="cat wanted; grep -c $(cat wanted) answer"))
    assert (done.outcome, done.reward, done.trainable) == (Outcome.OK, 1.0, True)
    task = done.extra["task"]
    assert (task["output"], task["format"]) == ("5\n1\n", "container")
    assert list(task["seconds"]) == ["build", "start", "set_up", "run", "verify"]
    assert {"start", "set_up", "verify"} < {span.kind for span in done.spans}
    assert done.container is None
    assert text_of(task["logs"], "verify.log") == "5\n1\n"
    assert (local(made).calls["start"], local(made).calls["stop"], local(made).closed) == (1, 1, True)
    del done
    assert not os.path.exists(task["logs"])  # noqa: ASYNC240


@pytest.mark.parametrize(
    ("verify", "reward"),
    [
        ("exit 0", 1.0),
        ("exit 3", 0.0),
        ("echo tests; echo 0.25; exit 1", 0.25),
        ("echo 1; echo passed", 1.0),
        ("echo nan; exit 1", 0.0),
    ],
)
async def test_the_reward_is_the_last_line_or_the_exit_code(verify: str, reward: float) -> None:
    (done,) = await run(scheduler(says("x")), contained(verify=verify))
    assert (done.outcome, done.reward) == (Outcome.OK, reward)


class Breaks:
    """A format whose verification fails."""

    spec, agent_timeout = ContainerSpec(image="base"), None

    def __init__(self, arguments: dict[str, Any]) -> None:
        errors = {"crash": RuntimeError("no"), "infra": InfraError("no reward"), "slow": TookTooLong("verify", 1)}
        self.error = errors[arguments["how"]]

    async def set_up(self, container: Any) -> None:
        pass

    async def verify(self, container: Any, logs: Path) -> None:
        raise self.error


@pytest.mark.parametrize("how", ["crash", "infra", "slow", "sleep", "judge"])
async def test_a_verifier_or_a_judge_that_fails_is_not_the_agents_failure(how: str) -> None:
    def judge(**_: Any) -> float:
        raise ValueError("the judge does not answer")

    task_format("breaks")(Breaks)
    container = {"judge": {}, "sleep": {"verify": "sleep 60", "verify_timeout": 0.2}}.get(how)
    broken = row("r:0", task={"format": "breaks", "how": how}) if container is None else contained("r:0", **container)
    fine = contained("r:1", verify="true")
    masked, other = await run(scheduler(says("x"), function=judge), broken, fine)
    assert (masked.outcome, masked.trainable, other.reward) == (Outcome.INFRA_ERROR, False, 1.0)
    metrics = rollout_metrics([masked, other])
    assert (metrics["rollout/no_verdict_masked"], metrics["rollout/no_verdict_zero"]) == (1, 0)
    zero, other = await run(scheduler(says("x"), function=judge, on_failure="zero"), broken, fine)
    assert (zero.outcome, zero.reward, zero.trainable, other.reward) == (Outcome.OK, 0.0, True, 1.0)
    metrics = rollout_metrics([zero, other])
    assert (metrics["rollout/no_verdict_masked"], metrics["rollout/no_verdict_zero"]) == (0, 1)
    assert zero.extra["no_verdict"] == masked.error


async def test_a_start_that_fails_is_masked_whatever_becomes_of_verdicts() -> None:
    made = scheduler(says("x"), on_failure="zero")
    hung, _ = await run(made, contained("r:0", image="hang-start", start_timeout=0.1), contained("r:1", verify="true"))
    assert (hung.outcome, "no_verdict" in hung.extra) == (Outcome.INFRA_ERROR, False)


async def test_rows_without_a_container_make_no_provider() -> None:
    made = scheduler(says("The answer is 5 ."), function=lambda **_: 1.0)
    (done,) = await run(made, row(task="arithmetic", container="none"))
    assert (done.reward, done.extra, "provider" in vars(made.tasks)) == (1.0, {"task": "mine"}, False)


async def test_each_try_has_a_container_of_its_own_and_each_image_is_prepared_once() -> None:
    failures = {"1/r:0/1": 1}

    def script(key: str, turn: int) -> str | Exception:
        return InfraError("hiccup") if failures.pop(key, 0) else "The answer is 5 .<|im_end|>"

    made = scheduler(script, retries=1)
    rows = [contained(f"r:{i}", image=f"image-{i % 2}", verify="test ! -e seen && touch seen") for i in range(4)]
    done = await run(made, *rows, n=2)
    assert [t.reward for t in done] == [1.0] * 8
    calls = local(made).calls
    assert (calls["start"], calls["stop"], calls["prepare image-0"], calls["prepare image-1"]) == (9, 9, 1, 1)


async def test_at_most_so_many_start_and_run_at_once() -> None:
    made = scheduler(says("x"), max_starting=2, max_concurrent=5)
    done = await run(made, *(contained(f"r:{i}", verify="true") for i in range(12)))
    assert [t.reward for t in done] == [1.0] * 12
    assert (local(made).most["starting"], local(made).most["alive"]) == (2, 5)


@pytest.mark.prevents("a container's image, start or set-up fails or hangs")
@pytest.mark.parametrize(
    ("container", "failed", "finish", "error", "starts"),
    [
        ({"image": "hang-build", "build_timeout": 0.1}, "build", "timeout", "image: image hang-build took longer", 0),
        ({"image": "broken-build"}, "build", "error", "the container's image: image broken-build is not there", 0),
        ({"image": "hang-start", "start_timeout": 0.1}, "start", "timeout", "start: it took longer than its 0.1 s", 1),
        ({"image": "broken-start"}, "start", "error", "the container's start: no space left", 2),
        ({"set_up": "echo no; exit 2"}, "set_up", "error", "the task's set-up: set_up ended with code 2: no", 2),
        ({"set_up": "sleep 60", "set_up_timeout": 0.1}, "set_up", "timeout", "set_up took longer than its 0.1 s", 1),
    ],
)
async def test_a_phase_that_fails_masks_its_own_trajectory(
    container: dict[str, Any], failed: str, finish: str, error: str, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "SPARE_SECONDS", 0.0)
    made = scheduler(says("x"), retries=1)
    broken, fine = await run(made, contained("r:0", **container), contained("r:1", verify="true"))
    assert (broken.outcome, broken.finish, broken.reward) == (Outcome.INFRA_ERROR, finish, None)
    assert error in (broken.error or "")
    assert broken.extra["task"]["failed"] == failed
    assert fine.reward == 1.0
    assert local(made).calls["start"] == starts + 1  # a timeout is not tried again
    if failed == "build":
        assert local(made).calls[f"prepare {container['image']}"] == 1


async def test_a_failed_image_is_tried_again_when_its_row_comes_again() -> None:
    made = scheduler(says("x"))
    for _ in range(2):
        with pytest.raises(TooManyDrops, match="broken-build is not there"):
            await made.run([contained(image="broken-build")], n=2, sampling=SAMPLING, tag="1")
    assert local(made).calls["prepare broken-build"] == 2
    await made.tasks.close()


async def test_the_wait_for_other_builds_is_not_part_of_a_builds_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "SPARE_SECONDS", 0.0)
    monkeypatch.setattr(images, "AT_ONCE", 1)
    made = scheduler(says("x"))
    hanging = [contained(f"r:{i}", image="hang-build", build=f"/{i}", build_timeout=0.3) for i in range(3)]
    *hung, fine = await run(made, *hanging, contained("r:9", verify="true", build_timeout=0.3))
    assert [one.outcome for one in hung] == [Outcome.INFRA_ERROR] * 3
    assert fine.reward == 1.0


async def test_more_workers_than_containers_that_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "3/4")
    made = scheduler(says("x"), max_starting=2)
    done = await run(made, *(contained(f"r:{i}", verify="true") for i in range(3)))
    assert [one.reward for one in done] == [1.0] * 3
    assert local(made).most["starting"] == 1


async def test_images_of_further_containers_are_prepared_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainContainer, "further", (ContainerSpec("judge"),), raising=False)
    made = scheduler(says("x"))
    made.tasks.expect([contained(verify="true")])
    await made.tasks.images.ready(ContainerSpec("judge"))
    assert local(made).calls["prepare judge"] == 1
    await made.tasks.close()


async def test_images_of_waiting_rows_are_prepared_ahead() -> None:
    made = scheduler(says("x"), Sleeps, max_concurrent=1)
    work = asyncio.create_task(run(made, *(contained(f"r:{i}", image=f"i{i}", verify="true") for i in range(3))))
    async with asyncio.timeout(10):
        while sum(local(made).calls[f"prepare i{i}"] for i in range(3)) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert local(made).calls["start"] <= 1
    assert {phase: count for phase, count in made.tasks.phases.items() if count} in (
        {"build": 1},
        {"start": 1},
        {"run": 1},
    )
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


@pytest.mark.prevents("an agent takes longer than its task allows")
async def test_the_agents_own_limit_is_its_failure_and_is_verified() -> None:
    limited = contained(agent_timeout=0.5, verify="echo 0.5")
    (done,) = await run(scheduler(says("The answer is 5 ."), Sleeps), limited)
    assert (done.outcome, done.finish, done.reward) == (Outcome.MODEL_ERROR, "timeout", 0.5)
    assert done.trainable


async def test_the_runs_limit_and_an_infra_error_are_not_verified() -> None:
    made = scheduler(says("x"), Sleeps, timeout=0.5)
    with pytest.raises(TooManyDrops, match=r"rollout\.trajectory_timeout=0\.5"):
        await run(made, contained(verify="true"))
    assert local(made).calls["stop"] == 1
    with pytest.raises(TooManyDrops, match="the engine is down"):
        await run(scheduler(says("x"), Fails), contained(verify="true"))


async def test_a_slow_set_up_does_not_count_as_the_agents_time() -> None:
    (done,) = await run(scheduler(says("x"), timeout=0.6), contained(set_up="sleep 0.8", verify="true"))
    assert done.reward == 1.0


@pytest.mark.prevents("a run is stopped, or scores are dropped, while containers run")
async def test_a_cancelled_run_leaves_no_container() -> None:
    made = scheduler(says("x"), Sleeps)
    work = asyncio.create_task(made.run([contained(verify="true")], n=3, sampling=SAMPLING, tag="1"))
    async with asyncio.timeout(10):
        while local(made).calls["start"] < 3 or local(made).starting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work
    assert not local(made).alive
    await made.tasks.close()


async def test_the_reward_function_looks_into_the_container() -> None:
    def score(trajectory: Trajectory, extra_info: dict[str, Any], **_: Any) -> float:
        assert extra_info["task"]["container"] == trajectory.container.name
        return float("5" in (trajectory.container.folder / "answer").read_text())

    made = scheduler(says("The answer is 5 ."), function=score, max_concurrent=2)
    done = await run(made, contained("r:0"), contained("r:1"), n=2)
    assert [t.reward for t in done] == [1.0] * 4
    assert local(made).calls["stop"] == 4
    assert all(t.container is None for t in done)


async def test_scores_that_are_dropped_leave_no_container() -> None:
    async def score(**_: Any) -> float:
        await asyncio.sleep(3600)
        return 1.0

    made = scheduler(says("x"), function=score)
    await made.run([contained()], n=2, sampling=SAMPLING, tag="1", scored=False)
    assert len(local(made).alive) == 2
    made.drop()
    await made.tasks.close()
    assert not local(made).alive


async def test_where_scores_are_computed_elsewhere_the_container_ends_first() -> None:
    made = scheduler(says("x"))
    made.scorer = None
    (done,) = await run(made, contained())
    assert (done.container, done.reward, local(made).calls["stop"]) == (None, None, 1)


async def test_a_format_of_the_users() -> None:
    @task_format("mine")
    class Mine:
        agent_timeout = None

        def __init__(self, arguments: dict[str, Any]) -> None:
            self.broken = arguments.get("broken")
            self.spec = ContainerSpec(image="base")

        async def set_up(self, container: Any) -> None:
            if self.broken:
                raise ZeroDivisionError("oh")

        async def verify(self, container: Any, logs: Path) -> None:
            return None

    rows = row("r:0", task={"format": "mine", "broken": True}), row("r:1", task={"format": "mine"})
    broken, fine = await run(scheduler(says("x"), function=lambda **_: 0.5), *rows)
    assert (broken.error, fine.reward) == ("the task's set-up: ZeroDivisionError: oh", 0.5)


@pytest.mark.parametrize(
    ("extra_info", "says"),
    [
        ({"container": {"imag": "x"}}, "r:0: extra_info.container: unknown field 'imag'; did you mean image?"),
        ({"container": {"cpus": "2"}}, "r:0: extra_info.container: cpus is '2': write a number above 0"),
        ({"container": {"entrypoint": "yes"}}, "entrypoint is 'yes': write true or false"),
        ({"container": {"allowed": "a.org"}}, "allowed is 'a.org': write a list of text"),
        ({"task": {"format": "habor"}}, "r:0: extra_info.task.format=habor: "),
    ],
)
async def test_a_row_that_describes_no_container_ends_the_run(extra_info: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        await run(scheduler(lambda key, turn: "x"), row(**extra_info))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_row_may_say_all_that_a_container_has() -> None:
    assert FIELDS.keys() > {field.name for field in fields(ContainerSpec)} - {"services"}
    given = {"build": "here", "env": {"A": 1}, "memory_mb": 512, "allowed": ["a.org"], "network": None}
    spec = PlainContainer({"format": "container", **given}).spec
    assert spec == ContainerSpec(build=Path("here").absolute(), env={"A": "1"}, memory_mb=512, allowed=("a.org",))


def test_a_row_that_scores_itself_needs_no_reward_function(tmp_path: Path) -> None:
    for container, fine in (({"verify": "true"}, True), ({"image": "x"}, False)):
        record = {"prompt": "x", "extra_info": {"container": container}}
        (tmp_path / "rows.jsonl").write_text(json.dumps(record) + "\n")
        with nullcontext() if fine else pytest.raises(UserError, match="nothing scores"):
            something_scores(Reward(), Rollout(), Data(train_files=str(tmp_path / "rows.jsonl")))


async def test_a_row_names_no_code_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Format: pass\n")
    with pytest.raises(UserError, match="a row is data, and names no code by its path"):
        await run(scheduler(says("x")), row(task={"format": f"{tmp_path}/evil.py:Format"}))
    assert not (tmp_path / "ran").exists()


class Step:
    """A step whose reward is the number in the container's file `answer`."""

    agent_timeout = None

    def __init__(self, name: str) -> None:
        self.name, self.prompt = name, [{"role": "user", "content": f"Do {name}."}]
        self.passed, self.reward = True, 0.0

    async def set_up(self, container: Any) -> None:
        await container.exec("rm -f answer", timeout=10)

    async def verify(self, container: Any, logs: Path) -> Verdict:
        done = await container.exec("grep -o '[0-9.]*' answer | head -1", timeout=10)
        self.reward = float(done.stdout)
        self.passed = self.reward > 0
        return Verdict(self.reward)


@pytest.mark.parametrize(("said", "reward", "steps"), [("the answer is 0.5", 0.5, 3), ("the answer is 0", 0.0, 1)])
async def test_a_task_of_several_steps(said: str, reward: float, steps: int) -> None:
    @task_format("steps")
    class Steps:
        agent_timeout = None

        def __init__(self, arguments: dict[str, Any]) -> None:
            self.spec, self.steps = ContainerSpec(image="base"), [Step(name) for name in "abc"]
            self.offers = {"skills": "/skills"}

        async def set_up(self, container: Any) -> None:
            pass

        async def verify(self, container: Any, logs: Path) -> None:
            raise AssertionError("its steps are verified")

        def total(self) -> Verdict:
            return Verdict(max(step.reward for step in self.steps), {"best": 1.0})

    made = scheduler(lambda key, turn: said)
    (done,) = await run(made, row(task={"format": "steps"}))
    assert (done.error, done.reward, done.reward_extra["best"], done.turns) == (None, reward, 1.0, steps)
    assert len(done.ledgers) == steps
    assert [message["content"] for message in done.messages if message["role"] == "user"] == [
        f"Do {name}." for name in "abc"[:steps]
    ]
    assert [list(ledger.turn_ids()) for ledger in done.ledgers] == [[turn] for turn in range(steps)]
    assert done.extra["task"]["skills"] == "/skills"
    for ledger in done.ledgers:
        ledger.check()
    assert local(made).calls["stop"] == 1


async def test_services_need_a_provider_that_has_them() -> None:
    made = scheduler(says("x"))
    spec = ContainerSpec(image="base", services=Services(Path("x.yaml"), Path()))
    with pytest.raises(InfraError, match="provider=local runs no services beside a container; use docker"):
        await made.tasks.images.ready(spec)
    await made.tasks.close()
