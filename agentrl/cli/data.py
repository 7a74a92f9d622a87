"""`agentrl data`: write training rows for a task."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.cli.common import terminal
from agentrl.core.errors import UserError, plural, reported_as

if TYPE_CHECKING:
    from agentrl.tasks.demo import Task


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the common options, and a group of options for each task."""
    from agentrl.core.extensions import load_plugins
    from agentrl.tasks.demo import TASKS

    load_plugins()
    parser.add_argument("task", metavar="TASK", help=f"one of {', '.join(TASKS)}, or your own: file.py:Class")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.add_argument("--train", type=int, default=1000, metavar="N", help="training rows (default: %(default)s)")
    parser.add_argument("--val", type=int, default=100, metavar="N", help="validation rows (default: %(default)s)")
    parser.add_argument("--demos", type=int, default=0, metavar="N", help="demonstrations for agentrl sft (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same files (default: %(default)s)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="an option of a task that is named by its path"
    )
    for name in TASKS:
        _add_task_options(parser, name)


def _add_task_options(parser: argparse.ArgumentParser, name: str) -> None:
    from agentrl.tasks.demo import KEY, TASKS

    task = TASKS.get(name, KEY)
    group = parser.add_argument_group(name, task.HELP)
    for key, option in task.OPTIONS.items():
        group.add_argument(
            f"--{key.replace('_', '-')}",
            default=argparse.SUPPRESS,  # run() sees which options were given
            type=option.type,
            choices=option.choices,
            metavar=None if option.choices else option.metavar,
            help=f"{option.help} (default: {option.default})",
        )


def run(args: argparse.Namespace) -> None:
    """Generate the files; print their names and the command to train on them."""
    from agentrl.core.outputs import check_folder
    from agentrl.tasks.demo import KEY, TASKS, make_task
    from agentrl.tasks.generate import generate

    known = {key for name in TASKS for key in TASKS.get(name, KEY).OPTIONS}
    given = {key: value for key, value in vars(args).items() if key in known}
    task = make_task(args.task, given | dict(_own_option(args.task, text) for text in args.set))
    check_folder(args.out, "--out")
    sizes = {"train": args.train, "val": args.val, "demos": args.demos}
    console = terminal()
    for file, count in generate(task, args.out, **sizes, seed=args.seed).items():
        console.print(f"{file}: {plural(count, 'row')}")
    console.print("Train on it with:\n  agentrl train model.path=MODEL " + " \\\n    ".join(_settings(task, args.out)))


def _own_option(task: str, text: str) -> tuple[str, Any]:
    from agentrl.tasks.demo import KEY, TASKS, split_variant

    name, equals, value = text.partition("=")
    option = TASKS.get(split_variant(task)[0], KEY).OPTIONS.get(name)
    if option is None or not equals:
        raise UserError(f"--set {text}: write NAME=VALUE with an option of {task}")
    with reported_as(f"--set {text}"):
        return name, option.type(value)


def _settings(task: "Task", out: Path) -> list[str]:
    tools = task.tool_config(out)
    settings = {
        "data.train_files": out / "train.parquet",
        "data.val_files": out / "val.parquet" if (out / "val.parquet").exists() else None,
        "rollout.multi_turn.enable": "true" if tools or task.INTERACTION else None,
        "rollout.multi_turn.tool_config_path": tools,
        "rollout.multi_turn.interaction_config_path": task.INTERACTION,
        "rollout.containers.provider": task.CONTAINERS,
        "reward.custom_reward_function.name": task.REWARD,
    }
    return [f"{key}={value}" for key, value in settings.items() if value is not None]
