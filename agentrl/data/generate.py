"""Write a task's rows and demonstrations to files.

Invariants: no question stands in two splits, nor a validation question in the demonstrations; equal arguments give
equal files; the validation rows depend neither on `train` nor on `demos`, so that runs stay comparable.
"""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.data.tasks.base import Problem, Task, row
from agentrl.errors import UserError

# A task that repeats itself this often has run out of questions.
PATIENCE = 1000


@dataclass(frozen=True)
class Sizes:
    """Rows per split, and demonstrations."""

    train: int
    val: int
    demos: int = 0


def generate(task: Task, out: Path, sizes: Sizes, seed: int) -> dict[Path, int]:
    """Write train.parquet, val.parquet, sft.jsonl (each where its size is not 0) and the task's own files to `out`.

    Returns the files written with their numbers of rows. Raises UserError when the task runs out of questions.
    """
    val = distinct(task, sizes.val, random.Random(f"{seed}/val"), taken=set())
    asked = {problem.question for problem in val}
    train = distinct(task, sizes.train, random.Random(f"{seed}/train"), taken=asked)
    out.mkdir(parents=True, exist_ok=True)
    written: dict[Path, int] = {}
    for split, problems in (("train", train), ("val", val)):
        if problems:
            file = out / f"{split}.parquet"
            written[file] = _write_rows(file, [row(task, p, split, i) for i, p in enumerate(problems)])
    if sizes.demos:
        rng = random.Random(f"{seed}/demos")
        shown = distinct(task, sizes.demos, rng, taken=asked)
        written[out / "sft.jsonl"] = _write_lines(out / "sft.jsonl", _demonstrations(task, shown, rng))
    for name, lines in task.files().items():
        written[out / name] = _write_lines(out / name, lines)
    return written


def distinct(task: Task, number: int, rng: random.Random, taken: set[str]) -> list[Problem]:
    """`number` problems whose questions differ from one another and from those in `taken`."""
    problems: dict[str, Problem] = {}
    repeats = 0
    while len(problems) < number:
        problem = task.draw(rng)
        repeats = repeats + 1 if problem.question in problems or problem.question in taken else 0
        if repeats > PATIENCE:
            raise UserError(f"the task has only about {len(problems) + len(taken)} questions; ask for fewer rows")
        if not repeats:
            problems[problem.question] = problem
    return list(problems.values())


def _demonstrations(task: Task, problems: list[Problem], rng: random.Random) -> Iterator[dict[str, Any]]:
    tools = tool_schemas(task.TOOLS)
    for problem in problems:
        yield {"messages": task.demonstrate(problem, rng), "tools": tools}


def tool_schemas(tool_config_path: str | None) -> list[dict[str, Any]]:
    """OpenAI function schemas of the tools in a YAML file, as the model is shown them."""
    from agentrl.tools import load_tools

    return load_tools(tool_config_path, None, max_response=1024, unit="characters", side="middle").schemas(None)


def _write_rows(file: Path, rows: list[dict[str, Any]]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), file)
    return len(rows)


def _write_lines(file: Path, lines: Iterable[dict[str, Any]]) -> int:
    texts = [json.dumps(line, ensure_ascii=False) + "\n" for line in lines]
    file.write_text("".join(texts))
    return len(texts)
