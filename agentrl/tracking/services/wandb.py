"""Weights & Biases. Offline with WANDB_MODE=offline; `wandb sync` sends it later."""

import os
from collections.abc import Sequence

from agentrl.core.points import run_logger
from agentrl.tracking.generations import COLUMNS, Generation
from agentrl.tracking.services.service import GENERATIONS, RunInfo, Service


@run_logger("wandb")
class Wandb(Service):
    """Files under <run>/wandb, or where WANDB_DIR says."""

    name = "wandb"
    package = "wandb"
    fix = "log in with `wandb login`, or set WANDB_MODE=offline"

    def begin(self, info: RunInfo) -> None:
        folder = None if os.environ.get("WANDB_DIR") else str(info.folder)
        self.run = self.module.init(
            project=info.project,
            name=info.name,
            id=self.id,
            resume="allow" if self.resumed else None,
            dir=folder,
            config=dict(info.config),
        )

    def send_table(self, step: int, rows: Sequence[Generation]) -> None:
        table = self.module.Table(columns=list(COLUMNS), data=[row.values() for row in rows])
        self.run.log({GENERATIONS: table}, step=step)

    def end(self) -> None:
        self.run.finish()
