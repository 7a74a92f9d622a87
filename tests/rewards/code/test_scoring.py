"""The reward function as a run uses it: by name, by data source, through a pool and through a server."""

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config.schema import Config, Data, Reward
from agentrl.config.validate import validate
from agentrl.core.errors import InfraError, UserError
from agentrl.core.sandbox import Sandbox
from agentrl.rewards.checks import RUN
from agentrl.rewards.code import compute_score
from agentrl.rewards.function import load_reward_function
from agentrl.rewards.ready_made import known_source
from agentrl.rewards.scorer import Scorer
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory

pytestmark = pytest.mark.integration

Score = Callable[..., dict[str, float]]
RIGHT = "Here it is:\n```python\nprint(int(input()) * 2)\n```"
HALF = "```python\nn = int(input())\nprint(n * 2 if n < 10 else 0)\n```"


def doubled(number: int) -> str:
    inputs = [str(n) for n in range(number)]
    return json.dumps({"inputs": inputs, "outputs": [str(2 * int(n)) for n in inputs]})


@pytest.fixture
def score(runner: asyncio.Runner, sandbox: Sandbox) -> Score:
    def call(words: str, truth: Any, data_source: str = "mine", **more: Any) -> dict[str, float]:
        return runner.run(compute_score(data_source, words, truth, None, sandbox=sandbox, **more))

    return call


def test_the_share_of_cases_passed(score: Score) -> None:
    assert score(RIGHT, doubled(20))["score"] == 1.0
    found = score(HALF, doubled(20))
    assert (found["score"], found["wrong_answer"]) == (0.5, 0.5)


def test_verls_data_sets_count_their_first_ten(score: Score) -> None:
    for source in ("apps", "codecontests", "codeforces", "taco"):
        assert score(HALF, doubled(20), source)["score"] == 1.0
    assert score(HALF, doubled(20), "apps", continuous=False)["score"] == 0.5
    assert score(HALF, doubled(20), "mine", continuous=True)["score"] == 1.0


def test_no_code_and_bad_code_score_nothing(score: Score) -> None:
    assert score("I cannot.", doubled(2)) == {
        "score": 0.0,
        "no_code": 1.0,
        "wrong_answer": 0.0,
        "runtime_error": 0.0,
        "timeout": 0.0,
        "compile_error": 0.0,
    }
    for code in ("print(", "\0", "\ud800", "é = '\udcff'", "#" * 100_000):
        found = score(f"```python\n{code}\n```", doubled(2))
        assert (found["score"], found["no_code"]) == (0.0, 0.0)


def test_long_outputs_are_read_to_their_end(score: Score) -> None:
    truth = {"inputs": [""], "outputs": ["x" * 3_000_000]}
    assert score("```python\nprint('x' * 3_000_000)\n```", truth)["score"] == 1.0


def test_another_language(score: Score) -> None:
    code = "```cpp\n#include <iostream>\nint main() { int n; std::cin >> n; std::cout << 2 * n; }\n```"
    assert score(code, doubled(3), language="cpp", timeout=30)["score"] == 1.0


def test_a_row_without_cases_is_not_the_models_fault(score: Score) -> None:
    with pytest.raises(UserError, match="reward_model.ground_truth"):
        score(RIGHT, "42")


def trajectory(words: list[int], truth: Any, data_source: str = "apps") -> Trajectory:
    ledger = Ledger()
    ledger.append_prompt([0])
    ledger.append_model(words, [-0.1] * len(words), turn=0, version=0)
    return Trajectory(Row("f:1", [], data_source, reward_model={"ground_truth": truth}), "k", 0, ledgers=[ledger])


def scorer(sandbox: Sandbox, name: str = "agentrl.rewards.code:compute_score", timeout: float = 60.0) -> Scorer:
    return Scorer(
        load_reward_function(None, name, {}),
        Reward(tool_weight=1.0, interaction_weight=1.0, num_workers=4, timeout=timeout),
        lambda ids: RIGHT if 1 in ids else "nothing",
        sandbox=sandbox,
    )


def test_the_scorer_hands_over_the_runs_sandbox(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    right, wrong = trajectory([1], doubled(3)), trajectory([2], doubled(3))
    # The time limit of other functions does not count: a wait for the sandbox is no failure.
    judge = scorer(sandbox, timeout=0.01)
    runner.run(judge.score(right))
    runner.run(judge.score(wrong))
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert right.reward_extra["no_code"] == 0.0


class Dead(Sandbox):
    async def run(self, job: Any, *, client: str = "") -> Any:
        raise InfraError("the pool is gone")


def test_a_dead_sandbox_masks_the_sample() -> None:
    subject = trajectory([1], doubled(3))
    asyncio.run(scorer(Dead()).score(subject))
    assert (subject.outcome, subject.reward) == (Outcome.INFRA_ERROR, None)
    assert "the pool is gone" in str(subject.error)


def test_chosen_by_data_source_where_nothing_else_scores(tmp_path: Path) -> None:
    def data(source: str) -> Data:
        row = {"prompt": [{"role": "user", "content": "x"}], "data_source": source, "extra_info": {"index": 0}}
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / f"{source}.parquet")
        return Data(train_files=str(tmp_path / f"{source}.parquet"))

    assert known_source(data("taco"))
    assert not known_source(data("mine"))
    assert not known_source(Data(train_files=str(tmp_path / "none.parquet")))
    config = Config(data=data("taco"))
    config.model.path = str(tmp_path)
    config.actor.ppo_mini_batch_size = config.data.train_batch_size
    config.rollout.n = 8
    validate(config, RUN)
    config.data = data("gsm8k")
    with pytest.raises(UserError, match="nothing scores the answers"):
        validate(config, RUN)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Address of `agentrl sandbox serve`."""
    command = [sys.executable, "-m", "agentrl", "sandbox", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ) as process:
        assert process.stdout is not None
        seen = ""
        for line in process.stdout:
            seen += line.decode()
            if found := re.search(r"http://[\d.]+:\d+", seen):
                break
        else:
            raise AssertionError(seen)
        yield f"{found[0]}/run_code"
        process.terminate()
        process.stdout.read()


@pytest.mark.timeout(180)
def test_through_a_server(server: str) -> None:
    slow = "```python\nimport time; time.sleep(1.5); print(int(input()) * 2)\n```"
    function = {"fn_name": "f", "inputs": ["1", "[2]"], "outputs": ["2", "[2, 2]"]}
    asserts = {"assert_case": ["assert f(1) == 2", "assert f(2) == 3", "assert f(1)"]}
    code = "```python\ndef f(x): return x * 2\n```"

    async def run() -> list[float]:
        sandbox = Sandbox(server, max_concurrent=4)
        try:
            work = [
                compute_score("", RIGHT, doubled(3), sandbox=sandbox),
                compute_score("", code, function, sandbox=sandbox),
                compute_score("", code, asserts, sandbox=sandbox),
                compute_score("", slow, doubled(9), sandbox=sandbox, total_timeout=4.0),
            ]
            return [found["score"] for found in await asyncio.gather(*work)]
        finally:
            await sandbox.close()

    right, called, asserted, late = asyncio.run(run())
    assert (right, called, asserted) == (1.0, 1.0, pytest.approx(2 / 3))
    assert 0 < late < 0.5


VERL = Path(sys.prefix) / "reference/verl/utils/reward_score/sandbox_fusion/__init__.py"
ROWS: dict[str, dict[str, Any]] = {
    "program": {"inputs": ["1 2\n", "3 4", "10 -4"], "outputs": ["3\n", "7\n\n", "6"]},
    "function": {"fn_name": "add", "inputs": ["1\n2", "[1]\n[2]", '"a"\n"b"'], "outputs": ["3", "[1, 2]", "ab"]},
    "asserts": {"assert_case": ["assert add(1, 2) == 3", "assert add([1], [2]) == [1, 2]", "assert add('a', 'b')"]},
}
SOLUTIONS = [
    "```python\ndef add(a, b):\n    return a + b\nif __name__ == '__main__':\n    print('x')\n```",
    "```python\nclass Solution:\n    def add(self, a, b):\n        return a + b\n```",
    "```python\ndef add(a, b):\n    return int(a) + int(b)\n```",
    "```python\na, b = map(int, input().split())\nprint(a + b)\n```",
    "```\nimport sys\nprint(sum(int(n) for n in sys.stdin.read().split()))\n```",
    "first ```python\nbroken(\n``` then ```python\nprint(sum(map(int, input().split())))\n```",
    "```text\nprint(sum(map(int, input().split())))\n```",
    "```python\nprint(7)\n```",
    "```python\n1 / 0\n```",
    "no code",
]


@pytest.mark.timeout(300)
def test_scores_are_those_of_verls_own_code(server: str) -> None:
    """For honest solutions; what verl's code can be talked into is in test_hacks.py."""
    assert VERL.exists(), "run `make setup`: it fetches the reference code"
    spec = importlib.util.spec_from_file_location("reference_verl_scoring", VERL)
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = reference
    spec.loader.exec_module(reference)

    async def ours() -> list[float]:
        sandbox = Sandbox(server)
        try:
            found = [compute_score("", words, row, sandbox=sandbox) for row in ROWS.values() for words in SOLUTIONS]
            return [result["score"] for result in await asyncio.gather(*found)]
        finally:
            await sandbox.close()

    theirs = [
        reference.compute_score(server, None, 1024, words, json.dumps(row))[0]
        for row in ROWS.values()
        for words in SOLUTIONS
    ]
    cases = [(kind, words) for kind in ROWS for words in SOLUTIONS]
    differing = {
        case: pair for case, *pair in zip(cases, asyncio.run(ours()), theirs, strict=True) if pair[0] != pair[1]
    }
    # verl reads a function's value and what the solution prints off one standard output. So printing spoils a right
    # answer, and a program that never defines the function passes where it happens to print the value.
    assert differing == {
        ("function", SOLUTIONS[0]): [1.0, 0.0],
        ("function", SOLUTIONS[4]): [0.0, pytest.approx(1 / 3)],
    }
