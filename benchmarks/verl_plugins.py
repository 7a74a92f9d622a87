"""Plug-in files of projects built on verl: each is loaded as a run loads it, and called once.

    python -m benchmarks.verl_plugins FOLDER [--only loop]

Tools, interactions, agent loops, reward functions, reward managers and dataset classes are found by their base classes
and names. Each is loaded in a process of its own and called with a small row, without any service: the engine plays a
script. Verdicts: `runs`; `raises`: it loads and is called, and its own code wants another row; `asks`: its call asks
for a service, a file or a model that is not here; `refused`: one line says why; `FAILS`: anything else.
"""

import argparse
import ast
import asyncio
import json
import multiprocessing
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.rollout.scripted import environment, make_chat, row, says, tokenizer

BASES = {
    "BaseTool": "tool",
    "BaseInteraction": "interaction",
    "AgentLoopBase": "loop",
    "ToolAgentLoop": "loop",
    "SingleTurnAgentLoop": "loop",
    "AbstractRewardManager": "manager",
    "RewardManagerBase": "manager",
    "RewardLoopManagerBase": "manager",
    "RLHFDataset": "dataset",
    "AbstractSampler": "sampler",
    "AbstractCurriculumSampler": "sampler",
}
LIMIT = 90.0
"""Seconds for one file."""
OUTSIDE = (OSError, TimeoutError)
SERVICES = (
    "connect",
    "resolve",
    "refused",
    "unreachable",
    "timed out",
    "no such file",
    "api key",
    "api_key",
    "credential",
)
Verdict = tuple[str, str]


@dataclass(frozen=True)
class Plugin:
    """A class or function of a file."""

    kind: str
    file: Path
    name: str


def plugins(folder: Path) -> Iterator[Plugin]:
    """All that a folder holds; of a class and its children in one file, each."""
    for file in sorted(folder.rglob("*.py")):
        try:
            tree = ast.parse(file.read_bytes())
        except SyntaxError:
            continue
        text = file.read_text(errors="replace")
        known = {
            name: kind
            for name, kind in BASES.items()
            if re.search(rf"from (?:verl\b|\.base_tool\b).*\n?.*\b{name}\b", text)
        }
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                kind = next((known[name] for base in node.bases if (name := _last(base)) in known), None)
                kind = kind or ("manager" if _is_manager(node) else None)
                if kind is not None:
                    known[node.name] = kind
                    yield Plugin(kind, file, node.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_reward(node):
                yield Plugin("reward", file, node.name)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_manager(node: ast.ClassDef) -> bool:
    registered = any(isinstance(mark, ast.Call) and _last(mark.func) == "register" for mark in node.decorator_list)
    return registered and node.name.endswith("Manager")


def _is_reward(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)}
    return {"solution_str", "ground_truth", "data_source"} <= names or {"solution_strs", "ground_truths"} <= names


async def tool(plugin: Plugin) -> Verdict:
    """One call with the schema's required arguments."""
    from agentrl.tools import load_tools

    schema = {
        "type": "function",
        "function": {"name": "tried", "description": "", "parameters": {"type": "object", "properties": {}}},
    }
    entry = {"class_name": _dotted(plugin), "config": {"type": "native"}, "tool_schema": schema}
    entry |= _own_entry(plugin, "tools") or {}
    path = _written({"tools": [entry]})
    tools = load_tools(str(path), None, max_response=256, unit="characters", side="middle")
    name, runner = next(iter(tools.runners.items()))
    session = tools.open("0/r/0", {name: {"create_kwargs": {"ground_truth": "5"}}}, None, None)
    await session.start()
    try:
        given = runner.schema["function"]["parameters"]
        result = await session.call(name, {key: _example(part) for key, part in given.get("properties", {}).items()})
    finally:
        await session.release()
    if result.outcome is Outcome.INFRA_ERROR:
        raise InfraError(result.error or "")
    return "runs", " ".join(str(result.text).split())[:80]


async def interaction(plugin: Plugin) -> Verdict:
    """One reply."""
    from agentrl.interactions import load_interactions

    entry = {"name": "tried", "class_name": _dotted(plugin), "config": {}} | (_own_entry(plugin, "interaction") or {})
    users = load_interactions(str(_written({"interaction": [entry]})))
    session = users.open("0/r/0", {"name": entry["name"], "query": "What is 2 + 3 ?", "ground_truth": "5"})
    await session.start()
    try:
        reply = await session.respond([{"role": "user", "content": "2 + 3 ?"}, {"role": "assistant", "content": "5"}])
        return "runs", f"{reply.score} {await session.score()} {reply.text[:60]}"
    finally:
        await session.finalize()


async def loop(plugin: Plugin) -> Verdict:
    """One conversation."""
    from agentrl.rollout.attempt import attempt
    from agentrl.rollout.loops import loop_class

    path = _written([{"name": "tried", "_target_": _dotted(plugin)}])
    env, _ = environment(lambda key, turn: says("5")(key, 0))
    settings: Config = compose(["model.path=m", "data.train_files=x"], config_name="train", checks=())
    env = replace(env, settings=settings)
    trajectory = Trajectory(subject(), "0/r/0", 0)
    trajectory.row.extra_info["interaction_kwargs"] = {"name": "tried", "query": "2 + 3 ?", "ground_truth": "5"}
    await attempt(lambda: loop_class("tried", str(path))(env), trajectory, Sampling(64, temperature=0.7, seed=1), LIMIT)
    if trajectory.outcome is Outcome.INFRA_ERROR:
        raise InfraError(trajectory.error or "")
    return "runs", f"{trajectory.turns} turns, {sum(led.model_tokens for led in trajectory.ledgers)} tokens"


def subject() -> Row:
    """A row with what examples of verl have."""
    question = "What is 2 + 3 ?"
    return replace(row(index=7, split="test", question=question, answer="5"), data_source="openai/gsm8k")


def _settings(*more: str) -> Any:
    return compose(["model.path=m", "data.train_files=x", *more], config_name="train", checks=())


async def _scored(*settings: str) -> Verdict:
    from agentrl.core.sandbox import Sandbox
    from agentrl.rollout.building import scorer

    config = _settings(*settings)
    trajectory = Trajectory(subject(), "0/r/0", 0)
    trajectory.row.reward_model |= {"ground_truth": "5", "style": "rule"}
    env, _ = environment(says("The answer is \\boxed{5} ."))
    from agentrl.rollout.loops.single_turn import SingleTurn

    await SingleTurn(env).run(trajectory, Sampling(64, seed=1))
    judge = scorer(config, env.chat.tokenizer, Sandbox(None))
    judge.expect([trajectory.key])
    await judge.score(trajectory)
    if trajectory.outcome is Outcome.INFRA_ERROR:
        raise InfraError(trajectory.error or "")
    return "runs", f"reward {trajectory.reward}"


async def reward(plugin: Plugin) -> Verdict:
    """One score."""
    plural = "solution_strs" in plugin.file.read_text()
    manager = ("reward.reward_manager.name=batch",) if plural else ()
    named = f"reward.custom_reward_function.path={plugin.file}", f"reward.custom_reward_function.name={plugin.name}"
    return await _scored(*named, *manager)


async def manager(plugin: Plugin) -> Verdict:
    """One score."""
    return await _scored(
        f"reward.reward_manager.module.path={plugin.file}", f"reward.reward_manager.name={plugin.name}"
    )


async def dataset(plugin: Plugin) -> Verdict:
    """The first of two rows."""
    from agentrl.data.dataset import load_dataset

    records = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"What is 2 + {i} ?"}],
            "reward_model": {"style": "rule", "ground_truth": str(2 + i)},
            "extra_info": {"index": i, "split": "train"},
        }
        for i in range(2)
    ]
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    config = _settings(f"data.custom_cls.path={plugin.file}", f"data.custom_cls.name={plugin.name}")
    rows = load_dataset(config.data, str(path), tokenizer())
    return "runs", f"{len(rows)} rows; {str(rows[0].prompt)[:60]}"


async def sampler(plugin: Plugin) -> Verdict:
    """Samplers are functions in agentrl."""
    _settings(f"data.sampler.class_path={plugin.file}", f"data.sampler.class_name={plugin.name}")
    return "runs", ""


TRIES: dict[str, Callable[[Plugin], Awaitable[Verdict]]] = {
    "tool": tool,
    "interaction": interaction,
    "loop": loop,
    "reward": reward,
    "manager": manager,
    "dataset": dataset,
    "sampler": sampler,
}


def _dotted(plugin: Plugin) -> str:
    """The class by the name that its project gives it: from the folder that holds its packages."""
    top = plugin.file.parent
    while (top / "__init__.py").exists():
        top = top.parent
    for folder in (top, *top.parents[:3]):
        sys.path.append(str(folder))
    return f"{'.'.join(plugin.file.relative_to(top).with_suffix('').parts)}.{plugin.name}"


def _own_entry(plugin: Plugin, section: str) -> dict[str, Any] | None:
    """The project's own YAML of the class, without the name of its module."""
    import yaml

    for folder in (plugin.file.parent, *plugin.file.parents[1:4]):
        for path in [*folder.glob("*.yaml"), *folder.glob("*/*.yaml"), *folder.glob("*/*/*.yaml")]:
            if plugin.name not in path.read_text(errors="replace"):
                continue
            content = yaml.safe_load(path.read_text())
            for entry in content.get(section, ()) if isinstance(content, dict) else ():
                if str(entry.get("class_name", "")).endswith(f".{plugin.name}"):
                    return {**entry, "class_name": _dotted(plugin)}
    return None


def _written(content: Any) -> Path:
    path = Path(tempfile.mkdtemp()) / "plugin.yaml"
    path.write_text(json.dumps(content))
    return path


def _example(part: dict[str, Any]) -> Any:
    kind = part.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if part.get("enum"):
        return part["enum"][0]
    known = {"integer": 1, "number": 1.0, "boolean": True, "object": {}}
    return [_example(part.get("items") or {})] if kind == "array" else known.get(kind, "5")


def verdict_of(plugin: Plugin) -> Verdict:
    """Load it, call it once."""
    try:
        return asyncio.run(asyncio.wait_for(TRIES[plugin.kind](plugin), LIMIT))
    except UserError as error:
        return "refused", str(error)
    except InfraError as error:
        text = str(error)
        if any(word in text.lower() for word in SERVICES):
            return "asks", text
        return ("raises" if " failed: " in text else "FAILS"), text
    except OUTSIDE as error:
        return "asks", f"{type(error).__name__}: {error}"
    except Exception as error:
        return "FAILS", f"{type(error).__name__}: {error}"


def _told(plugin: Plugin, answers: Any) -> None:
    answers.put(verdict_of(plugin))


def tried(plugin: Plugin) -> Verdict:
    """The verdict, from a process of its own."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=_told, args=(plugin, answers))
    process.start()
    process.join(LIMIT + 30)
    if process.is_alive():
        process.kill()
        return "asks", f"it took longer than {LIMIT:g} s"
    return ("FAILS", f"exit code {process.exitcode}") if answers.empty() else answers.get()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=TRIES, help="one kind alone")
    parser.add_argument("--match", default="", help="part of the file's path")
    args = parser.parse_args()
    make_chat()  # what every process needs is made once
    folder = args.folder.resolve()
    table, counts = Table("kind", "file", "name", "verdict", "reason"), Counter[str]()
    for plugin in plugins(folder):
        path = str(plugin.file.relative_to(folder))
        if (args.only and plugin.kind != args.only) or args.match not in path:
            continue
        verdict, reason = tried(plugin)
        counts[verdict] += 1
        table.add_row(plugin.kind, path, plugin.name, verdict, " ".join(reason.split())[:300])
        print(plugin.kind, path, plugin.name, verdict, " ".join(reason.split())[:300], sep=" | ", flush=True)
    console = Console(width=200)
    console.print(table)
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))


if __name__ == "__main__":
    main()
