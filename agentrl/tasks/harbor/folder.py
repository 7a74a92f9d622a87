"""Finds task folders, and makes rows of them: `data.train_files=tasks:FOLDER`.

FOLDER is a task, or has tasks in it at any depth. After a question mark, `tag=WORD` and `name=PATTERN` choose among
them, `processes=keep` leaves what an agent left running alone, and `broken=skip` leaves out tasks that cannot be run.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from urllib.parse import parse_qsl

import yaml

from agentrl.core.errors import UserError, one_line, plural
from agentrl.core.inside import check_links
from agentrl.core.paths import expanded
from agentrl.core.points import row_source
from agentrl.tasks.harbor.fields import Passed
from agentrl.tasks.harbor.task import Task
from agentrl.tasks.harbor.toml_task import read_toml
from agentrl.tasks.harbor.yaml_task import read_yaml
from agentrl.trajectory.row import Row

READERS = {"task.toml": read_toml, "task.yaml": read_yaml}
CHOICES = {"tag", "name", "processes", "broken"}
SHOWN_BROKEN, SHOWN_NOTES = 3, 10
_check_once = lru_cache(1 << 16)(check_links)
"""A row's task is read for each of its trajectories, and its folder may have many files."""

log = logging.getLogger(__name__)


def find_tasks(folder: Path) -> dict[str, Path]:
    """Name -> task folder, by name. Raises UserError where there is none."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name one with task folders in it")
    found = {path.relative_to(folder).as_posix(): path for path in _walk(folder)}
    if not found:
        raise UserError(f"{folder} has no task folder: one has a task.toml, instruction.md, environment/ and tests/")
    if "." in found:
        return {folder.resolve().name: folder}
    return dict(sorted(found.items()))


def read_task(folder: Path, passed: Passed = ()) -> Task:
    """The task in a folder; `passed`: what it may have of this machine's environment. Raises UserError in one line that
    names file and field."""
    for name, read in READERS.items():
        if (folder / name).is_file():
            _check_once(folder.resolve())
            try:
                return read(folder.resolve(), passed)
            except (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
                raise UserError(f"{folder / name}: it cannot be read: {one_line(error)}") from None
    raise UserError(f"{folder} is no task folder: it has neither {' nor '.join(READERS)}")


@row_source("tasks", scored=True)
def task_rows(argument: str) -> list[Row]:
    """A row for each task of a folder, by name. Raises UserError for tasks that cannot be run."""
    path, _, query = argument.partition("?")
    choices = _choices(query)
    tasks, broken = {}, []
    for name, folder in find_tasks(expanded(path)).items():
        try:
            tasks[name] = read_task(folder, None)
        except UserError as error:
            broken.append(str(error))
    if broken and choices.get("broken") != "skip":
        more = f" and {len(broken) - SHOWN_BROKEN} more" if len(broken) > SHOWN_BROKEN else ""
        listed = "; ".join(broken[:SHOWN_BROKEN])
        raise UserError(f"tasks:{path}: {listed}{more}; write tasks:{path}?broken=skip to leave them out")
    pattern, tag = choices.get("name", "*"), choices.get("tag", "")
    chosen = {name: task for name, task in tasks.items() if fnmatch(name, pattern) and tag in ("", *task.tags)}
    notes = Counter(note for task in chosen.values() for note in task.notes)
    if notes:
        listed = "; ".join(f"{note} ({plural(count, 'task')})" for note, count in notes.most_common(SHOWN_NOTES))
        log.warning("tasks:%s: %s; `agentrl tasks check` shows each task's", path, listed)
    return [_row(path, name, task, choices) for name, task in chosen.items()]


def _walk(folder: Path) -> Iterator[Path]:
    """Task folders at any depth, and none inside of another one. A link is followed to a task alone: it may lead
    through the whole machine."""
    for path, folders, files in os.walk(folder):
        folders.sort()
        if READERS.keys() & set(files):
            folders.clear()
            yield Path(path)
        links = (link for name in folders if (link := Path(path, name)).is_symlink())
        yield from (link for link in links if any((link / name).is_file() for name in READERS))


def _choices(query: str) -> dict[str, str]:
    found = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := found.keys() - CHOICES:
        raise UserError(f"tasks:...?{min(unknown)}: choose among {', '.join(sorted(CHOICES))}")
    return found


def _row(path: str, name: str, task: Task, choices: Mapping[str, str]) -> Row:
    kept = {key: value for key, value in choices.items() if key == "processes"}
    category = task.metadata.get("category")
    return Row(
        uid=f"tasks:{path.rstrip('/')}/{name}",
        prompt=[{"role": "user", "content": task.instruction}],
        data_source=Path(path).resolve().name,
        ability=str(category) if category else None,
        extra_info={"task": {"format": "harbor", "path": str(task.folder), **kept}},
    )
