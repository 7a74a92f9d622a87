"""Write a task's rows and demonstrations to files.

Invariants: no question stands in two splits, nor a validation question in the demonstrations; equal arguments give
equal files; the validation rows depend neither on `train` nor on `demos`, so that runs stay comparable; files of other
existing rows of another task are moved to `superseded_<k>/`, so that a folder has rows of one task.
"""

import asyncio
import json
import logging
import random
from collections.abc import Sequence
from filecmp import cmp
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.outputs import superseded_path, write_atomic, write_parquet, writing
from agentrl.tasks.demo.base import Problem, Task, row
from agentrl.tasks.demo.stage import Script, Stage

MAX_REPEATS = 1000
"""A task that repeats itself more often in a row has run out of questions."""
FILES = ("train.parquet", "val.parquet", "sft.jsonl")

log = logging.getLogger(__name__)


def generate(task: Task, out: Path, *, train: int, val: int, demos: int = 0, seed: int) -> dict[Path, int]:
    """Write train.parquet, val.parquet, sft.jsonl (each where its size is not 0) and the task's own files to `out`.

    Returns the files written with their numbers of rows. Raises UserError when the task runs out of questions.
    """
    held_out = distinct(task, val, random.Random(f"{seed}/val"), taken=set())
    asked = {problem.question for problem in held_out}
    trained = distinct(task, train, random.Random(f"{seed}/train"), taken=asked)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in task.files(out).items():
        (out / name).write_text(text, encoding="utf-8")
    written: dict[Path, int] = {}
    for split, problems in (("train", trained), ("val", held_out)):
        if problems:
            written[out / f"{split}.parquet"] = len(problems)
            with writing(str(out / f"{split}.parquet")):
                rows = [row(task, problem, split, i) for i, problem in enumerate(problems)]
                write_parquet(_draft(out / f"{split}.parquet"), rows)
    if demos:
        rng = random.Random(f"{seed}/demos")
        shown = distinct(task, demos, rng, taken=asked)
        written[out / "sft.jsonl"] = len(shown)
        messages = asyncio.run(demonstrations(task, shown, rng, out))
        with writing(str(out / "sft.jsonl")):
            write_atomic(_draft(out / "sft.jsonl"), (json.dumps(one, ensure_ascii=False) + "\n" for one in messages))
    _publish(out, list(written))
    return written


def _draft(file: Path) -> Path:
    return file.with_name(f".new-{file.name}")


def _publish(out: Path, files: Sequence[Path]) -> None:
    """Rename the drafts to their final names."""
    if any(file.exists() and not cmp(file, _draft(file), shallow=False) for file in files):
        aside = superseded_path(out)
        aside.mkdir()
        for old in filter(Path.exists, (out / name for name in FILES)):
            old.rename(aside / old.name)
        log.warning("%s held other rows: they are now in %s", out, aside)
    for file in files:
        _draft(file).replace(file)


def distinct(task: Task, number: int, rng: random.Random, taken: set[str]) -> list[Problem]:
    """`number` problems whose questions differ from one another and from those in `taken`."""
    problems: dict[str, Problem] = {}
    repeats = 0
    while len(problems) < number:
        problem = task.draw(rng)
        repeats = repeats + 1 if problem.question in problems or problem.question in taken else 0
        if repeats > MAX_REPEATS:
            raise UserError(f"the task has only about {len(problems) + len(taken)} questions; ask for fewer rows")
        if not repeats:
            problems[problem.question] = problem
    return list(problems.values())


async def demonstrations(task: Task, problems: list[Problem], rng: random.Random, out: Path) -> list[dict[str, Any]]:
    """{messages, tools} of each problem's script, played with the tools and interaction for rows in `out`."""
    from agentrl.interactions import load_interactions
    from agentrl.tools import load_tools

    tools = load_tools(task.tool_config(out), None, max_response=1024, unit="characters", side="middle")
    stage = Stage(tools, load_interactions(task.INTERACTION))
    scripts = [(problem, task.demonstrate(problem, rng)) for problem in problems]
    slots = asyncio.Semaphore(task.DEMOS_AT_ONCE)

    async def play(problem: Problem, script: Script) -> dict[str, Any]:
        async with slots:
            messages = await stage.play(problem.prompt, problem.extra_info, script)
        return {"messages": messages, "tools": tools.schemas(problem.extra_info.get("tool_selection"))}

    try:
        return await asyncio.gather(*(play(problem, script) for problem, script in scripts))
    finally:
        await stage.provider.close()
        await tools.close()
