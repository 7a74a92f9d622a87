"""SwanLab. SWANLAB_MODE=offline or local keeps it on this machine; `swanlab sync` sends it later."""

import os
from collections.abc import Sequence
from typing import Any

from agentrl.core.points import run_logger
from agentrl.tracking.generations import COLUMNS, Generation
from agentrl.tracking.services.service import GENERATIONS, InitService, RunInfo


@run_logger("swanlab")
class Swanlab(InitService):
    """Files under <run>/swanlog, or where SWANLAB_LOG_DIR says."""

    name = "swanlab"
    package = "swanlab"
    fix = "log in with `swanlab login`, or set SWANLAB_MODE=offline"

    def place(self, info: RunInfo) -> dict[str, Any]:
        folder = os.environ.get("SWANLAB_LOG_DIR") or str(info.folder / "swanlog")
        return {"log_dir": folder, "mode": os.environ.get("SWANLAB_MODE")}

    def send_table(self, step: int, rows: Sequence[Generation]) -> None:
        table = self.module.echarts.Table().add(list(COLUMNS), [row.values() for row in rows])
        self.run.log({GENERATIONS: table}, step=step)

    def end(self) -> None:
        if self.module.has_run():
            self.module.finish()
