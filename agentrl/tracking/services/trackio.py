"""Trackio: a database on this machine (TRACKIO_DIR), or the Space that TRACKIO_SPACE_ID names."""

from collections.abc import Sequence

from agentrl.core.points import run_logger
from agentrl.tracking.generations import COLUMNS, Generation
from agentrl.tracking.services.service import GENERATIONS, RunInfo, Service


@run_logger("trackio")
class Trackio(Service):
    """`trackio show --project <project>` shows it."""

    name = "trackio"
    package = "trackio"
    fix = "check TRACKIO_SPACE_ID and TRACKIO_DIR"

    def begin(self, info: RunInfo) -> None:
        self.run = self.module.init(
            project=info.project,
            name=info.name,
            resume="allow" if self.resumed else "never",
            config=dict(info.config),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def send_table(self, step: int, rows: Sequence[Generation]) -> None:
        lines = [["" if value is None else value for value in row.values()] for row in rows]
        self.run.log({GENERATIONS: self.module.Table(columns=list(COLUMNS), data=lines)}, step=step)

    def end(self) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None
