"""Start a run: lock its folder, compare its settings with the checkpoint, restart it after lost workers."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from agentrl.core.errors import UserError
from agentrl.core.remote_files import is_remote
from agentrl.training.checkpoint.changes import check_changes
from agentrl.training.checkpoint.lineage import FOLDER
from agentrl.training.checkpoint.restarts import run_with_restarts
from agentrl.training.checkpoint.run_lock import locked

T = TypeVar("T")

log = logging.getLogger(__name__)


def supervise(run: Callable[[Any], T], config: Any, key: str) -> T:
    """`run(config)` with its folder locked, restarted after WorkerDied.

    `key`: the setting that names the folder. Raises UserError where another run writes there, or where the checkpoint
    is of another experiment.
    """
    with run_folder(config, key) as run_dir:
        return run_with_restarts(run, config, run_dir / FOLDER)


@contextmanager
def run_folder(config: Any, key: str) -> Iterator[Path]:
    """Lock the folder of a run while the body runs. Raises UserError as `supervise` does."""
    run_dir = Path(local(getattr(config.trainer, key.rpartition(".")[2]), key))
    with locked(run_dir, key):
        if not getattr(config.trainer, "val_only", False):
            changes = check_changes(config, run_dir / FOLDER)
            if changes:
                log.warning("%s", changes)
        yield run_dir


def local(folder: str, key: str) -> str:
    """The folder itself. Raises UserError for a URL, which `Path` would turn into a local folder of a strange name."""
    if is_remote(folder):
        copies = f"; trainer.default_hdfs_dir={folder} gets copies of its checkpoints" if "local_dir" in key else ""
        raise UserError(f"{key}={folder}: a run writes to a folder on this machine: name one{copies}")
    return folder
