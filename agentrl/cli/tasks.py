"""Check task folders before a run, prepare images for a cluster, and remove what runs with containers have left.

agentrl tasks check FOLDER                 run each task's solution, and nothing at all: 1 and 0 are right
agentrl tasks check FOLDER --task fix-git  one of them
agentrl tasks check FOLDER rollout.containers.pass_env=[HF_TOKEN]   with settings of a run
agentrl tasks build FOLDER --push HOST:PORT    build or pull their images once, and push them to a registry
agentrl tasks build swe:FILE --push HOST:PORT  the images of rows
agentrl tasks clean                        remove containers and networks that ended runs of this machine have left
agentrl tasks clean --images               the images that runs have built, too
"""

import argparse
import asyncio
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.cli.common import terminal
from agentrl.core.errors import InfraError, UserError, one_line
from agentrl.core.paths import expanded

if TYPE_CHECKING:
    from agentrl.tasks.harbor.table import CheckTable


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="COMMAND")
    check = actions.add_parser("check", help="build each task, run its solution and a no-op in it, verify both")
    check.add_argument("folder", help="a task folder, or a folder with task folders in it")
    check.add_argument("--task", metavar="NAME", action="append", help="only this one, or those like it: 'git-*'")
    check.add_argument("--jobs", metavar="N", type=int, default=2, help="tasks at a time (default: 2)")
    check.add_argument("--logs", metavar="FOLDER", help="keep what the tests wrote (default: it is not kept)")
    check.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings, as of a run")

    build = actions.add_parser("build", help="build or pull the images of tasks once, and push them to a registry")
    build.add_argument("rows", metavar="FOLDER_OR_ROWS", help="task folders, a file of rows, or a source: swe:FILE")
    build.add_argument("--push", metavar="REGISTRY", required=True, help="HOST:PORT, or HOST/PATH")
    build.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings, as of a run")

    clean = actions.add_parser("clean", help="remove containers, networks and images that runs have left")
    clean.add_argument("--images", action="store_true", help="also remove the images that runs have built")


def run(args: argparse.Namespace) -> int:
    """Run one of them; returns 1 if a task is broken. Raises UserError and InfraError."""
    if args.action == "build":
        return asyncio.run(_build(args))
    return _clean(images=args.images) if args.action == "clean" else _check(args)


def _clean(*, images: bool) -> int:
    from agentrl.containers.docker.provider import clean

    (removed, left), console = clean(images=images), terminal()
    for name in removed:
        console.print(f"removed {name}")
    if left:
        raise UserError(f"Docker does not remove {', '.join(left)}: restart Docker, then run this again")
    if not removed:
        console.print("nothing was left")
    return 0


async def _build(args: argparse.Namespace) -> int:
    """Push the images of rows, one after another. Raises UserError for rows without one, and without an engine."""
    from agentrl.config import compose
    from agentrl.containers.docker.provider import DockerProvider
    from agentrl.data.dataset import load_dataset
    from agentrl.tasks.runner import specs_of

    config: Any = compose(args.overrides, checks=())
    console, failed = terminal(), 0
    source = f"tasks:{args.rows}" if expanded(args.rows).is_dir() else args.rows
    rows = load_dataset(config.data, source, None, what="FOLDER_OR_ROWS")
    specs = {spec.image or spec.build: spec for spec in specs_of(rows, config.rollout.containers)}
    if not specs:
        raise UserError(f"{args.rows}: no row has a container; name task folders, or rows with extra_info.container")
    provider = DockerProvider(config.rollout.containers)
    try:
        await provider.ready()
        for name, spec in specs.items():
            try:
                console.print(f"{name}  {await provider.images.push(spec, args.push)}", markup=False)
            except (UserError, InfraError) as error:
                failed = 1
                console.print(f"{name}: {one_line(error)}", style="red", markup=False)
        return failed
    finally:
        await provider.close()


def _check(args: argparse.Namespace) -> int:
    """Check the tasks of a folder. Raises UserError for a folder without one, and without an engine."""
    from agentrl.tasks.harbor.folder import find_tasks
    from agentrl.tasks.harbor.table import CheckTable

    if args.jobs < 1:
        raise UserError("--jobs must be 1 or more")
    tasks = find_tasks(expanded(args.folder))
    chosen = {name: tasks[name] for name in tasks if any(fnmatch(name, wanted) for wanted in args.task or ["*"])}
    if not chosen:
        raise UserError(f"--task: {args.folder} has no such task; it has {', '.join(tasks)}")
    table = CheckTable(terminal(), chosen)
    with tempfile.TemporaryDirectory(prefix="agentrl-tasks-") as unkept:
        asyncio.run(_checked(chosen, args, table, Path(args.logs or unkept)))
    return table.close()


async def _checked(tasks: dict[str, Path], args: argparse.Namespace, table: "CheckTable", logs: Path) -> None:
    from agentrl.config import compose
    from agentrl.tasks.harbor.check import check_tasks
    from agentrl.tasks.runner import TaskRunner

    runner = TaskRunner(compose(args.overrides, checks=()).rollout.containers)
    try:
        if hasattr(runner.provider, "ready"):
            await runner.provider.ready()
        async for report in check_tasks(tasks, runner, logs, jobs=args.jobs):
            table.add(report)
    finally:
        await runner.close()
