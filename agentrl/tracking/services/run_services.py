"""Services whose module begins a run by `init`: SwanLab, Trackio, Weights & Biases.

SWANLAB_MODE=offline or local keeps SwanLab's on this machine, and `swanlab sync` sends it later; WANDB_MODE=offline and
`wandb sync` do the same for Weights & Biases. Trackio has a database on this machine (TRACKIO_DIR), or the Space that
TRACKIO_SPACE_ID names.
"""

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from agentrl.core.points import run_logger
from agentrl.tracking.generations import Generation
from agentrl.tracking.services.service import GENERATIONS, RunInfo, Service


class InitService(Service):
    """A service whose module begins a run by `init`."""

    def begin(self, info: RunInfo) -> None:
        about = {"project": info.project, "name": info.name, "config": dict(info.config)}
        self.run = self.module.init(**about, resume="allow" if self.resumed else "never", **self.own(info))

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None

    @abstractmethod
    def own(self, info: RunInfo) -> dict[str, Any]:
        """Arguments of `init` that this service alone has."""


@run_logger("swanlab")
class Swanlab(InitService):
    """Files under <run>/swanlog, or where SWANLAB_LOG_DIR says."""

    name = "swanlab"
    fix = "log in with `swanlab login`, or set SWANLAB_MODE=offline"

    def own(self, info: RunInfo) -> dict[str, Any]:
        folder = os.environ.get("SWANLAB_LOG_DIR") or str(info.folder / "swanlog")
        return {"id": self.id, "log_dir": folder, "mode": os.environ.get("SWANLAB_MODE")}

    def send_table(self, step: int, rows: Sequence[Generation]) -> None:
        table = self.module.echarts.Table().add(list(Generation._fields), [list(row) for row in rows])
        self.run.log({GENERATIONS: table}, step=step)


@run_logger("trackio")
class Trackio(InitService):
    """`trackio show --project <project>` shows it."""

    name = "trackio"
    fix = "check TRACKIO_SPACE_ID and TRACKIO_DIR"

    def own(self, info: RunInfo) -> dict[str, Any]:
        return {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}

    def send_table(self, step: int, rows: Sequence[Generation]) -> None:
        lines = [["" if value is None else value for value in row] for row in rows]
        self.run.log({GENERATIONS: self.module.Table(columns=list(Generation._fields), data=lines)}, step=step)


@run_logger("wandb")
class Wandb(InitService):
    """Files under <run>/wandb, or where WANDB_DIR says."""

    name = "wandb"
    fix = "log in with `wandb login`, or set WANDB_MODE=offline"

    def own(self, info: RunInfo) -> dict[str, Any]:
        return {"id": self.id, "dir": None if os.environ.get("WANDB_DIR") else str(info.folder)}

    def send_table(self, step: int, rows: Sequence[Generation]) -> None:
        table = self.module.Table(columns=list(Generation._fields), data=[list(row) for row in rows])
        self.run.log({GENERATIONS: table}, step=step)
