"""The whole way of a coding trajectory but for the model: it tries code in the sandbox, answers, is scored there."""

import json
import random
from typing import Any

import pytest

from agentrl.config.schema import Reward
from agentrl.core.sandbox import Sandbox
from agentrl.engines.engine import Sampling
from agentrl.rewards.function import load_reward_function
from agentrl.rewards.scorer import Scorer
from agentrl.rollout.loops import ToolAgent
from agentrl.rollout.scheduler import Scheduler
from agentrl.tasks.demo import make_task
from agentrl.tools import load_tools
from agentrl.trajectory.ledger import Source
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.rollout.scripted import END, calls, environment

pytestmark = pytest.mark.integration

RIGHT = "def f(a, b):\n    return {code}\n"


async def play(sandbox: Sandbox, answers: list[list[str]], tools: str = "tools/code_interpreter.yaml") -> Any:
    """Trajectories that say what is written; the row wants f(a, b) = a + b."""
    tests = {"fn_name": "f", "inputs": ["1\n2", "30\n4", "-1\n1"], "outputs": ["3", "34", "0"]}
    row = Row("r:0", [{"role": "user", "content": "Add."}], reward_model={"ground_truth": json.dumps(tests)})
    loaded = load_tools(tools, None, max_response=500, unit="characters", side="middle", sandbox=sandbox)
    bounds = {"response_length": 2000, "model_length": 4000}
    env, _ = environment(lambda key, turn: answers[int(key[-1])][turn] + END, tools=loaded, **bounds)
    judge = Scorer(
        load_reward_function(None, "agentrl.rewards.code:compute_score", {}),
        Reward(tool_weight=1.0, interaction_weight=1.0, num_workers=4, timeout=60.0),
        env.chat.decode,
        sandbox=sandbox,
    )
    scheduler = Scheduler(
        env=env, loop_for=lambda _: ToolAgent, scorer=judge, max_concurrent=8, timeout=120.0, retries=0
    )
    done = await scheduler.run([row], n=len(answers), sampling=Sampling(2000, seed=1), tag="1")
    await loaded.close()
    return done


def tries(code: str, name: str = "code_interpreter") -> str:
    return calls(name, json.dumps({"code": code}))


def hands_in(code: str) -> str:
    return f"```python\n{code}```"


def seen(trajectory: Trajectory) -> list[str]:
    """What the tool answered, from the tokens that the model saw."""
    return [call.response for call in trajectory.tool_calls]


async def test_tried_then_answered_then_scored() -> None:
    right, wrong, half = (RIGHT.format(code=code) for code in ("a + b", "a - b", "abs(a + b) if a > 0 else 7"))
    sandbox = Sandbox()
    try:
        done = await play(
            sandbox,
            [
                [tries(f"{right}print(f(2, 2))"), hands_in(right)],
                [tries("1 / 0"), tries("import os; os.abort()"), hands_in(wrong)],
                [hands_in(half)],
                ["I do not know."],
                [tries("print(open('/etc/shadow').read())"), hands_in("import os\nos._exit(0)\n")],
            ],
        )
    finally:
        await sandbox.close()
    assert [t.outcome for t in done] == [Outcome.OK] * 5
    assert [round(t.reward, 2) for t in done] == [1.0, 0.0, 0.67, 0.0, 0.0]
    assert seen(done[0]) == ["4\n"]
    assert "ZeroDivisionError" in seen(done[1])[0]
    assert seen(done[1])[1] == "Error: ended by SIGABRT."
    assert done[3].reward_extra["no_code"] == 1.0
    assert "root:" not in seen(done[4])[0]
    for trajectory in done:
        (ledger,) = trajectory.ledgers
        ledger.check()
        trained = {source for source, mask in zip(ledger.sources, ledger.mask, strict=True) if mask}
        assert trained == {Source.MODEL}


@pytest.mark.prevents("a sandbox session ends before its conversation, or too many starts overload the host")
async def test_a_session_lasts_as_long_as_its_conversation() -> None:
    sandbox = Sandbox()
    try:
        done = await play(
            sandbox,
            [
                [tries("x = 5", "python"), tries("x + 1", "python"), "done"],
                [tries("x", "python"), "done"],
            ],
            "tools/python_session.yaml",
        )
        assert sandbox._pool is not None
        assert sandbox._pool.stats()["sessions"] == 0
    finally:
        await sandbox.close()
    assert seen(done[0])[1] == "6\n"
    assert "NameError" in seen(done[1])[0]


async def test_a_sandbox_that_dies_masks_and_scores_nothing() -> None:
    class Dead(Sandbox):
        async def run(self, job: Any, *, client: str = "") -> Any:
            raise RuntimeError("gone")

    right = RIGHT.format(code="a + b")
    done = await play(Dead(), [[hands_in(right)], [tries("print(1)"), hands_in(right)], ["no code"]])
    assert [(t.outcome, t.reward) for t in done[:2]] == [(Outcome.INFRA_ERROR, None)] * 2
    assert (done[2].outcome, done[2].reward) == (Outcome.OK, 0.0), "nothing had to run to see that there is no code"


def test_the_tasks_tests_are_not_in_its_prompt() -> None:
    problem = make_task("programs", {}).draw(random.Random(0))
    hidden = json.loads(problem.ground_truth)
    shown = problem.question + json.dumps(problem.extra_info)
    assert not [case for case in hidden["inputs"] if case.replace("\n", ", ") in shown]
