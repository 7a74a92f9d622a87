"""Write checkpoints at once, or from a copy while training continues; delete old ones."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentrl.config.schema import Trainer
from agentrl.core.errors import UserError
from agentrl.core.outputs import writing
from agentrl.core.remote_files import remove, send
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.save_schedule import KEPT
from agentrl.training.parallel.ranks import Ranks

FULL = (
    "older checkpoints are complete: free the disk or keep fewer (trainer.max_actor_ckpt_to_keep, of `agentrl sft` "
    "trainer.max_ckpt_to_keep), and run the same command again"
)
PARTS = {"parameters": "model", "fixed": "model", "adapter": "model", "optimizer": "optimizer"}
"""Keys of a Trainable's state -> words of save_contents and load_contents; all other keys are `extra`."""
RESUMABLE = ["model", "optimizer", "extra"]
"""Contents of a checkpoint that a run resumes from."""
MODEL_ALONE = ["hf_model"]


def check_resumable(path: Path, state: dict[str, Any]) -> None:
    """Raises UserError for a checkpoint of the model alone, as a run with trainer.save_freq=-1 ends with."""
    if not any(state.values()) and checkpoints.has_weights(path):
        raise UserError(
            f"{path} has only the model (trainer.save_freq=-1), so no run resumes from it: train on from its weights "
            f"with model.path={path} and another trainer.experiment_name, or start over with "
            "trainer.resume_mode=disable"
        )


def chosen(state: dict[str, Any], contents: list[str]) -> dict[str, Any]:
    """The part of a Trainable's state that `contents` names: model, optimizer, extra."""
    return {name: value for name, value in state.items() if PARTS.get(name, "extra") in contents}


class Saver:
    """Writes the checkpoints of a run, one at a time."""

    def __init__(self, trainer: Trainer, ranks: Ranks, *, background: bool) -> None:
        """`background`: write in a thread, while training continues."""
        self.trainer = trainer
        self.ranks = ranks
        self.thread = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._pending: Future[None] | None = None

    def save(self, folder: Path, step: int, state: dict[str, Any], write_model: Callable[[Path], None]) -> None:
        """Write a checkpoint after the one before is on disk; raises the error of the one before."""
        self.wait()
        automatic = self.trainer.save_freq is None
        with writing(f"the checkpoint of step {step} in {folder}", FULL):
            finish = checkpoints.begin(folder, step, state, write_model, ranks=self.ranks, automatic=automatic)
        if self.thread is None:
            self._finish(finish, folder, step)
        else:
            self._pending = self.thread.submit(self._finish, finish, folder, step)

    def wait(self) -> None:
        """Wait until the pending checkpoint is on disk; raises its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _finish(self, finish: checkpoints.Finish, folder: Path, step: int) -> None:
        with writing(f"the checkpoint of step {step} in {folder}", FULL):
            path = finish()
        self.ranks.attempt(lambda: self._follow_up(path) if self.ranks.first else None)

    def _follow_up(self, path: Path) -> None:
        remote, what = self.trainer.default_hdfs_dir, "trainer.default_hdfs_dir"
        if remote is not None:
            send(path, remote, checkpoints.MANIFEST, what)
        checkpoints.prune(path.parent, self.trainer.max_actor_ckpt_to_keep)
        if self.trainer.max_actor_ckpt_to_keep is None:
            for name in checkpoints.prune(path.parent, KEPT, automatic=True):
                if remote is not None:
                    remove(f"{remote.rstrip('/')}/{name}", what)
        checkpoints.prune_part(path.parent, "critic", self.trainer.max_critic_ckpt_to_keep)
