"""Shows the reports of checked tasks: a line each, as soon as it is there."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agentrl.tasks.harbor.check import TaskReport
from agentrl.tracking.fields import duration, figure

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("oracle", "no-op", "build", "start", "verify")
WIDTH = 8


class CheckTable:
    """A table on a console, filled line by line."""

    def __init__(self, console: "Console", names: Iterable[str]) -> None:
        self.console = console
        self.width = max([len("task"), *map(len, names)])
        self.reports: list[TaskReport] = []
        console.print("task".ljust(self.width) + "".join(name.rjust(WIDTH) for name in COLUMNS), style="bold")

    def add(self, report: TaskReport) -> None:
        """Show one task, below it why it is broken."""
        from rich.text import Text

        self.reports.append(report)
        line = Text(report.name.ljust(self.width) + _cells(report), "red" if report.problem else "")
        self.console.print(line if report.problem else line.append("  ok", "green"))
        for detail in report.details:
            self.console.print(Text(f"    {detail}", "dim"))
        if report.problem:
            self.console.print(Text.assemble("  ", ("broken: ", "bold red"), (report.problem, "red")))
        for note in report.notes:
            self.console.print(Text(f"  note: {note}", "yellow"))

    def close(self) -> int:
        """Show the sum; gives the exit code: 1 where a task is broken."""
        from rich.text import Text

        fine = sum(not report.problem for report in self.reports)
        style = "bold green" if fine == len(self.reports) else "bold red"
        self.console.print(Text(f"{fine} of {len(self.reports)} tasks are fine", style))
        return int(fine < len(self.reports))


def _cells(report: TaskReport) -> str:
    rewards = [figure(value) if value and value % 1 else f"{value or 0:.0f}" for value in (report.oracle, report.noop)]
    values = (report.oracle, report.noop, report.build, report.start, report.verify)
    shown = rewards + [duration(value or 0.0) for value in values[2:]]
    return "".join(("-" if v is None else text).rjust(WIDTH) for v, text in zip(values, shown, strict=True))
