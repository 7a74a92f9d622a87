"""Tasks: reproducible, disjoint, solvable, and true to the tools and the checker that training runs."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agentrl.chat import Chat
from agentrl.containers import ContainerSpec
from agentrl.core.errors import UserError
from agentrl.core.sandbox import Sandbox
from agentrl.data import read_rows
from agentrl.interactions import load_interactions
from agentrl.rewards import scorers
from agentrl.rewards.code import compute_score
from agentrl.tasks.demo import KEY, TASKS, Task, make_task
from agentrl.tasks.demo.stage import Stage
from agentrl.tasks.demo.terminal import CHORES
from agentrl.tasks.generate import distinct, generate
from agentrl.tasks.models import tiny
from agentrl.tasks.plain import PlainContainer
from agentrl.tools import load_tools
from tests.tasks.local_provider import LocalContainer, LocalProvider

pytestmark = pytest.mark.integration

NAMES = ["arithmetic", "bank", "lookup", "programs", "terminal", "reasoning_gym:chain_sum"]
WITH_DEMOS = ["arithmetic", "bank", "lookup", "programs"]


def demos(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "sft.jsonl").read_text().splitlines()]


def digest(folder: Path) -> dict[str, bytes]:
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]  # a tool's bytecode may be beside them
    return {file.name: file.read_bytes().replace(str(folder).encode(), b"") for file in files}


def stage(task: Task, folder: Path) -> Stage:
    tools = load_tools(task.tool_config(folder), None, max_response=1024, unit="characters", side="middle")
    return Stage(tools, load_interactions(task.INTERACTION))


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_files_and_splits_are_disjoint(tmp_path: Path, name: str) -> None:
    shown = 20 if name in WITH_DEMOS else 0
    for folder, seed in (("a", 5), ("b", 5), ("c", 6)):
        generate(make_task(name, {}), tmp_path / folder, train=60, val=30, demos=shown, seed=seed)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert digest(tmp_path / "a") != digest(tmp_path / "c")
    train, val = (read_rows(tmp_path / "a" / f"{split}.parquet") for split in ("train", "val"))
    asked = [row.prompt[0]["content"] for row in [*train, *val]]
    assert (len(train), len(val)) == (60, 30)
    assert len(set(asked)) == 90
    held_out = {row.prompt[0]["content"] for row in val}
    assert held_out.isdisjoint(d["messages"][0]["content"] for d in (demos(tmp_path / "a") if shown else []))


def test_validation_rows_stay_when_the_rest_changes(tmp_path: Path) -> None:
    for folder, sizes in (("a", {"train": 10}), ("b", {"train": 40, "demos": 15})):
        generate(make_task("arithmetic", {}), tmp_path / folder, **sizes, val=20, seed=1)
    assert (tmp_path / "a/val.parquet").read_bytes() == (tmp_path / "b/val.parquet").read_bytes()


def test_files_of_other_rows_are_set_aside_together(tmp_path: Path) -> None:
    task = make_task("arithmetic", {})
    generate(task, tmp_path, train=10, val=5, seed=1)
    generate(task, tmp_path, train=10, val=5, demos=4, seed=1)  # the same rows, and demonstrations
    assert not (tmp_path / "superseded_1").exists()
    old = {name: (tmp_path / name).read_bytes() for name in ("train.parquet", "val.parquet", "sft.jsonl")}
    generate(make_task("reasoning_gym:chain_sum", {}), tmp_path, train=10, val=5, seed=1)
    assert not (tmp_path / "sft.jsonl").exists()
    assert all((tmp_path / "superseded_1" / name).read_bytes() == data for name, data in old.items())


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_in_verls_layout(tmp_path: Path, name: str) -> None:
    task = make_task(name, {})
    generate(task, tmp_path, train=5, val=0, seed=0)
    assert not (tmp_path / "val.parquet").exists()
    row = read_rows(tmp_path / "train.parquet")[2]
    assert row.data_source == task.DATA_SOURCE
    assert row.reward_model == {"style": "rule", "ground_truth": row.ground_truth}
    assert (row.extra_info["split"], row.extra_info["index"]) == ("train", 2)
    assert row.agent_name is None
    json.dumps(row.extra_info)


@pytest.mark.parametrize("difficulty", ["tiny", "easy", "normal"])
def test_arithmetic_demonstrations_without_slips_are_right(tmp_path: Path, difficulty: str) -> None:
    """The real calculator works the expressions out and the real checker agrees with the answers."""
    task = make_task("arithmetic", {"difficulty": difficulty, "sloppiness": 0.0})
    rng = random.Random(0)

    async def play() -> None:
        set_up = stage(task, tmp_path)
        for problem in (task.draw(rng) for _ in range(40)):
            messages = await set_up.play(problem.prompt, problem.extra_info, task.demonstrate(problem, rng))
            assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]
            assert messages[2]["content"] == problem.ground_truth
            assert messages[3]["content"] == f"The answer is {problem.ground_truth}."
            assert int(problem.ground_truth) >= 0
            user = set_up.interactions.open("k", problem.extra_info["interaction_kwargs"])
            await user.start()
            reply = await user.respond(messages)
            await user.finalize()
            assert (reply.stop, reply.score) == (True, 1.0)

    asyncio.run(play())


def test_sloppiness_is_what_it_says(tmp_path: Path) -> None:
    task = make_task("arithmetic", {"sloppiness": 0.3, "retries": 0.5})
    rng = random.Random(0)

    async def play() -> Counter[str]:
        set_up, seen = stage(task, tmp_path), Counter[str]()
        for problem in (task.draw(rng) for _ in range(600)):
            messages = await set_up.play(problem.prompt, problem.extra_info, task.demonstrate(problem, rng))
            seen["right at first"] += messages[3]["content"] == f"The answer is {problem.ground_truth}."
            seen["second attempts"] += len(messages) == 8
            seen["right at last"] += messages[-1]["content"] == f"The answer is {problem.ground_truth}."
        return seen

    seen = asyncio.run(play())
    assert 0.30 < seen["right at first"] / 600 < 0.44  # 0.7 ** 3 = 0.34, and a few slips that happen to be harmless
    assert 0.40 < seen["second attempts"] / (600 - seen["right at first"]) < 0.60
    assert seen["right at last"] == seen["right at first"] + seen["second attempts"]


def test_demonstrations_teach_what_the_parser_reads(tmp_path: Path) -> None:
    generate(make_task("arithmetic", {}), tmp_path, train=0, val=0, demos=40, seed=0)
    tiny.prepare(tmp_path / "model", [tmp_path / "sft.jsonl"])
    chat = Chat(AutoTokenizer.from_pretrained(tmp_path / "model"), format="hermes")
    for demo in demos(tmp_path):
        ledger = chat.transcript(demo["messages"], demo["tools"])
        first = [t for t, mask, turn in zip(ledger.ids, ledger.mask, ledger.turns, strict=True) if mask and turn == 0]
        reply = chat.parse(first)
        assert reply.closed
        assert [call.arguments for call in reply.calls] == [
            demo["messages"][1]["tool_calls"][0]["function"]["arguments"]
        ]


def test_second_attempts_follow_the_checkers_own_words(tmp_path: Path) -> None:
    generate(
        make_task("arithmetic", {"sloppiness": 1.0, "slips": "copy", "retries": 1.0}),
        tmp_path,
        train=0,
        val=0,
        demos=20,
        seed=0,
    )
    for demo in demos(tmp_path):
        roles = [message["role"] for message in demo["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant"]
        stated = demo["messages"][3]["content"].removeprefix("The answer is ").removesuffix(".")
        assert demo["messages"][4]["content"] == f"{stated} is wrong. Try again."
        assert demo["messages"][7]["content"] == f"The answer is {demo['messages'][6]['content']}."
        assert demo["tools"][0]["function"]["name"] == "calculator"


def test_bank_demonstrations_earn_the_tools_own_reward(tmp_path: Path) -> None:
    task = make_task("bank", {})
    rng = random.Random(1)

    async def play() -> None:
        set_up = stage(task, tmp_path)
        for problem in (task.draw(rng) for _ in range(60)):
            messages = await set_up.play(problem.prompt, problem.extra_info, task.demonstrate(problem, rng))
            assert messages[-1]["content"].endswith(f" is {problem.ground_truth}.")
            tools = set_up.tools.open("k", problem.extra_info["tools_kwargs"], agent_data=None)
            await tools.start()
            assert await tools.rewards() == {"bank": 0.0}, "doing nothing is no solution"
            for message in messages:
                for call in message.get("tool_calls", []):
                    await tools.call(call["function"]["name"], call["function"]["arguments"])
            assert await tools.rewards() == {"bank": 1.0}
            await tools.release()

    asyncio.run(play())


def test_lookup_answers_stand_in_what_the_search_finds(tmp_path: Path) -> None:
    task = make_task("lookup", {"towns": 150})
    generate(task, tmp_path, train=50, val=10, demos=60, seed=0)
    for demo in demos(tmp_path):
        answer = demo["messages"][-1]["content"]
        found = [message["content"] for message in demo["messages"] if message["role"] == "tool"]
        assert any(answer in text for text in found)
        assert scorers.exact_match("", answer, answer) == 1.0
    assert len((tmp_path / "corpus.jsonl").read_text().splitlines()) == 300
    assert {len(demo["messages"]) for demo in demos(tmp_path)} == {4, 6}, "some questions take two searches"


@pytest.mark.parametrize("corrections", [0.0, 0.5, 1.0])
def test_programs_are_scored_by_tests_that_nobody_sees(tmp_path: Path, corrections: float) -> None:
    """The real interpreter tells a draft from what the example asks for; the real scorer agrees with it."""
    task = make_task("programs", {"corrections": corrections})
    generate(task, tmp_path, train=30, val=0, demos=30, seed=0)
    problems = distinct(task, 30, random.Random("0/demos"), taken=set())
    shown = [[m["content"].strip() for m in demo["messages"] if m["role"] == "tool"] for demo in demos(tmp_path)]

    async def score() -> list[float]:
        sandbox = Sandbox()
        try:
            scored = [
                await compute_score("", demo["messages"][-1]["content"], problem.ground_truth, sandbox=sandbox)
                for demo, problem in zip(demos(tmp_path), problems, strict=True)
            ]
        finally:
            await sandbox.close()
        return [result["score"] for result in scored]

    assert asyncio.run(score()) == [float(answers[-1] == "True") for answers in shown], "no other reading passes a test"
    assert all(answer == "False" for answers in shown for answer in answers[:-1]), "what passed is not tried again"
    if corrections == 0.0:
        assert {len(answers) for answers in shown} == {1}
        assert {answers[-1] for answers in shown} == {"True", "False"}, "the first draft is right by luck alone"
    elif corrections == 1.0:
        assert {len(answers) for answers in shown} == {1, 2}
        assert all(answers[-1] == "True" for answers in shown)
    for row in read_rows(tmp_path / "train.parquet"):
        hidden = json.loads(row.ground_truth)
        assert not [text for text in hidden["inputs"] if text in json.dumps(row.extra_info)]
        assert len(hidden["inputs"]) == len(hidden["outputs"]) == 6


async def test_a_chore_is_done_by_its_own_command_alone(tmp_path: Path) -> None:
    task, rng = make_task("terminal", {"mistakes": 0.0}), random.Random(0)
    container = LocalContainer(LocalProvider(), ContainerSpec())
    await container.start()
    for problem in {chosen.solution: chosen for chosen in (task.draw(rng) for _ in range(100))}.values():
        chore = problem.solution
        check = PlainContainer(problem.extra_info["container"])
        for other in (chore, *rng.sample([each for each in CHORES if each is not chore], 2)):
            await container.exec("rm -f *.txt", timeout=30)
            await check.set_up(container)
            await container.exec(other.command, timeout=30)
            verdict = await check.verify(container, tmp_path)
            assert (verdict is not None and verdict.reward) == float(other is chore), (chore, other)
    await container.stop()


def test_mistakes_in_chores_forget_the_file() -> None:
    task, rng = make_task("terminal", {"mistakes": 1.0}), random.Random(0)
    problems = [task.draw(rng) for _ in range(100)]
    calls = [next(task.demonstrate(problem, rng))["tool_calls"][0] for problem in problems]
    run = {call["function"]["arguments"]["command"] for call in calls}
    assert {"tac in.txt", "mv in.txt", "wc -l < in.txt"} <= run
    assert not [command for command in run if "out.txt" in command]


def test_terminal_demonstrations_run_in_containers(tmp_path: Path) -> None:
    generate(make_task("terminal", {"mistakes": 0.0}), tmp_path, train=0, val=0, demos=4, seed=0)
    for demo in demos(tmp_path):
        assert [message["role"] for message in demo["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert demo["messages"][2]["content"] == "(no output)"
        assert [tool["function"]["name"] for tool in demo["tools"]] == ["bash"]


def test_reasoning_gym_rows_score_with_their_own_verifier(tmp_path: Path) -> None:
    generate(make_task("reasoning_gym:gcd", {"settings": '{"min_value": 10}'}), tmp_path, train=10, val=5, seed=0)
    for row in read_rows([tmp_path / "train.parquet", tmp_path / "val.parquet"]):
        said = f"<answer>{row.ground_truth}</answer>"
        assert scorers.reasoning_gym(row.data_source, said, row.ground_truth, row.extra_info) == 1.0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("arithmetics", {}, r"TASK=arithmetics: did you mean arithmetic. choose arithmetic, bank"),
        ("arithmetic:easy", {}, r"arithmetic has no variants; leave out ':easy'"),
        ("reasoning_gym", {}, r"is a family of tasks: name one, as in reasoning_gym:chain_sum"),
        ("bank", {"sloppiness": 0.1}, r"--sloppiness is no option of the task bank; leave it out"),
        ("arithmetic", {"sloppiness": 1.5}, r"--sloppiness and --retries are chances"),
        ("arithmetic", {"slips": "copy,sign"}, r"--slips sign: choose from operator, operand, copy, parrot"),
        ("reasoning_gym:gcd", {"settings": "[1]"}, r"--settings \[1\] is no JSON object"),
        ("programs", {"cases": 0}, r"--cases 0: between 1 and 71"),
        ("programs", {"corrections": -1.0}, r"--corrections -1 is a share: between 0 and 1"),
        ("terminal", {"mistakes": 2.0}, r"--mistakes 2 is a share: between 0 and 1"),
        ("lookup", {"towns": 5000}, r"--towns 5000: choose between 1 and 1000"),
    ],
)
def test_mistakes(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task(name, options)


def test_a_task_that_runs_out_of_questions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"only about 9 questions; ask for fewer rows"):
        generate(make_task("lookup", {"towns": 1}), tmp_path, train=8, val=4, seed=0)


def test_demonstrations_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ReasoningGym has no demonstrations; leave out --demos"):
        generate(make_task("reasoning_gym:gcd", {}), tmp_path, train=1, val=1, demos=1, seed=0)


def test_no_two_tasks_share_an_option() -> None:
    names = [option for task in TASKS for option in TASKS.get(task, KEY).OPTIONS]
    assert len(names) == len(set(names))
