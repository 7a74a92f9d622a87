"""Weights & Biases. Offline with WANDB_MODE=offline; `wandb sync` sends it later."""

import os
from collections.abc import Sequence
from typing import Any

from agentrl.core.points import run_logger
from agentrl.tracking.generations import COLUMNS, Generation
from agentrl.tracking.services.service import GENERATIONS, InitService, RunInfo


@run_logger("wandb")
class Wandb(InitService):
    """Files under <run>/wandb, or where WANDB_DIR says."""

    name = "wandb"
    package = "wandb"
    fix = "log in with `wandb login`, or set WANDB_MODE=offline"

    def place(self, info: RunInfo) -> dict[str, Any]:
        return {"dir": None if os.environ.get("WANDB_DIR") else str(info.folder)}

    def send_table(self, step: int, rows: Sequence[Generation]) -> None:
        table = self.module.Table(columns=list(COLUMNS), data=[row.values() for row in rows])
        self.run.log({GENERATIONS: table}, step=step)

    def end(self) -> None:
        self.run.finish()
