"""Start a run: lock its folder, compare its settings with the checkpoint, restart it after lost workers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from agentrl.core.errors import UserError
from agentrl.core.outputs import check_folder
from agentrl.core.remote_files import is_remote
from agentrl.training.checkpoint.changes import NEW_RUN, Resumption, check_changes
from agentrl.training.checkpoint.lineage import FOLDER
from agentrl.training.checkpoint.restarts import run_with_restarts
from agentrl.training.checkpoint.run_lock import locked

T = TypeVar("T")


def supervise(run: Callable[[Any], T], config: Any, key: str, finished: Callable[[Any, int], T] | None = None) -> T:
    """`run(config)` with its folder locked, restarted after WorkerDied.

    `key`: the setting that names the folder. `finished(config, steps)` is called in place of `run` where all steps are
    taken. Raises UserError where another run writes there, or where the checkpoint
    is of another experiment.
    """
    with run_folder(config, key) as start:
        if start.finished and finished is not None:
            return finished(config, start.finished)
        start.say_changes()
        return run_with_restarts(run, config, folder_of(config, key) / FOLDER)


@contextmanager
def run_folder(config: Any, key: str, objects: Any = None) -> Iterator[Resumption]:
    """Lock the folder of a run while the body runs. Raises UserError as `supervise` does, and where no checkpoint can
    be written."""
    run_dir, validates = folder_of(config, key), getattr(config.trainer, "val_only", False)
    with locked(run_dir, key):
        if not validates:  # else the first checkpoint would say so, after hours
            check_folder(run_dir / FOLDER, key)
        start = NEW_RUN if validates else check_changes(config, run_dir / FOLDER, objects)
        yield start


def folder_of(config: Any, key: str) -> Path:
    """The folder that the setting `key` names. Raises UserError for a URL, which `Path` would turn into a local folder
    of a strange name."""
    folder: str = getattr(config.trainer, key.rpartition(".")[2])
    if is_remote(folder):
        copies = f"; trainer.default_hdfs_dir={folder} gets copies of its checkpoints" if "local_dir" in key else ""
        raise UserError(f"{key}={folder}: a run writes to a folder on this machine: name one{copies}")
    return Path(folder)
