"""Where a step's metrics go: the terminal, metrics.jsonl, TensorBoard, and services outside.

Invariant: after a restart from the checkpoint of step k, every logger forgets what it heard of later steps, so
that an interrupted and resumed run leaves the same record as an unbroken one. Services cannot: see `services`.
"""

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from agentrl.core.errors import UserError, needing
from agentrl.core.inside import inside
from agentrl.core.outputs import append_line, write_atomic
from agentrl.core.points import LOGGERS, run_logger
from agentrl.tracking.generations import Generation
from agentrl.tracking.live import LiveView
from agentrl.tracking.services.service import RunInfo
from agentrl.trajectory.trajectory import Trajectory

log = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
CONFIG_FILE = "config.yaml"
RECORD_FILE = "record.json"
"""Digests of the files that the run was made of, beside its settings."""
TENSORBOARD_DIR = "tensorboard"
MOST_UNWRITTEN = 10_000
"""Lines that wait for room on the disk."""
ADDS = math.inf
"""A `resume_step` of a run that only adds to the record of the folder's run: it validates, say."""
KEY = "trainer.logger"


class Logger:
    """Gets the metrics of every step. Your own class may derive from it, and leave methods out."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of `step`; step 0 is before training."""

    def generations(self, step: int, rows: Sequence[Generation]) -> None:
        """Record some conversations of a validation, where there is a place for tables."""

    def trajectories(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Record the trajectories of a step or a validation, before its metrics: their spans, say."""

    def close(self) -> None:
        """Write out what is pending; safe to call twice."""


@run_logger("console")
class ConsoleLogger(Logger):
    """Hands steps to the run's LiveView, which draws them or, without a terminal, prints a line each. The end of the
    run shows generations, before and after."""

    def __init__(self, run: RunInfo) -> None:
        self.view = run.view or LiveView(enabled=False)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.view.step(step, metrics)


@run_logger("file")
def file_logger(run: RunInfo) -> Logger:
    """metrics.jsonl in the run's folder."""
    return FileLogger(run.folder / METRICS_FILE, resume_step=run.resume_step)


class FileLogger(Logger):
    """metrics.jsonl: one JSON object a line, `{"step": k, "<name>": value, ...}`; a NaN or infinity is null. Lines that
    a full disk refuses are written, in order, with the next one that it takes."""

    def __init__(self, path: Path, *, resume_step: float | None = None) -> None:
        """Keep lines up to `resume_step`; None or 0 starts over and keeps an older file as metrics.jsonl.old."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume_step:
            write_atomic(path, [line for step, line in _lines(path) if step <= resume_step])
        elif path.exists() and path.stat().st_size:
            path.replace(path.with_name(path.name + ".old"))
        self._file = inside(path, path.parent).open("ab", buffering=0)
        self._unwritten = deque[bytes](maxlen=MOST_UNWRITTEN)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        finite = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        # Unbuffered: a killed process loses nothing, for the operating system has the line.
        self._unwritten.append(json.dumps({"step": step} | finite).encode() + b"\n")
        self._write()

    def close(self) -> None:
        with self._file:
            self._write()

    def _write(self) -> None:
        while self._unwritten:
            append_line(self._file, self._unwritten[0])
            self._unwritten.popleft()


@run_logger("tensorboard")
class TensorBoardLogger(Logger):
    """Scalars for TensorBoard in the run's folder, and the configuration as text. Raises UserError when the package is
    missing."""

    def __init__(self, run: RunInfo) -> None:
        with needing("trainer.logger: tensorboard", '"agentrl[loggers]" or drop it'):
            from torch.utils.tensorboard import SummaryWriter
        # Events of an earlier life at or after this step vanish from the plots.
        step = None if run.resume_step == ADDS else int(run.resume_step or 0)
        self._writer = SummaryWriter(str(run.folder / TENSORBOARD_DIR), purge_step=step + 1 if step else step)
        if run.config_yaml:
            self._writer.add_text("config", f"```yaml\n{run.config_yaml}\n```", global_step=step or 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)
        self._writer.flush()

    def generations(self, step: int, rows: Sequence[Generation]) -> None:
        for row in rows:
            # Four spaces: as code, for the text is not Markdown.
            facts = {name: str(value).replace("\n", "\n    ") for name, value in row._asdict().items()}
            lines = [f"**{name}**\n\n    {text}" for name, text in facts.items()]
            self._writer.add_text(f"generations/{row.row}", "\n\n".join(lines), global_step=step)

    def close(self) -> None:
        self._writer.close()


class SettingsLogger(Logger):
    """config.yaml and record.json: the settings and files that the run's last steps were taken under."""

    def __init__(self, run_dir: Path, config_yaml: str, record: str, *, resume_step: float | None = None) -> None:
        """A new run writes them at once, one that resumes with its first step after `resume_step`."""
        self._after = resume_step or 0
        self._files = {run_dir / CONFIG_FILE: config_yaml, run_dir / RECORD_FILE: record}
        if not (resume_step and (run_dir / CONFIG_FILE).exists()):
            self._write()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step > self._after:
            self._write()

    def _write(self) -> None:
        while self._files:
            path, text = self._files.popitem()
            write_atomic(path, [text])


class Loggers:
    """Several loggers as one. One in trouble (a full disk, a library) costs its own record, never the run."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = list(loggers)
        self._warned: set[str] = set()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda logger: logger.log(step, metrics))

    def generations(self, step: int, rows: Sequence[Generation]) -> None:
        self._each(lambda logger: logger.generations(step, rows))

    def trajectories(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Users' own loggers need not have this method."""
        self._each(lambda logger: getattr(logger, "trajectories", lambda *_: None)(step, trajectories))

    def close(self) -> None:
        self._each(lambda logger: logger.close())

    def _each(self, tell: Callable[[Logger], None]) -> None:
        for logger in self._loggers:
            try:
                tell(logger)
            except Exception as error:
                name, kind = type(logger).__name__, type(error).__name__
                if name not in self._warned:
                    log.warning("%s: %s: %s; the run continues without it", name, kind, error)
                self._warned.add(name)


def open_loggers(names: Sequence[str], run: RunInfo, record: str = "") -> Loggers:
    """The loggers of `trainer.logger`; also writes config.yaml and the `record` into the run's folder.

    Raises UserError for a name nobody knows, and for a service that is not installed or refuses.
    """
    for name in names:
        LOGGERS.get(name, KEY)
    settings = SettingsLogger(run.folder, run.config_yaml, record, resume_step=run.resume_step)
    in_order = sorted(dict.fromkeys(names), key=lambda name: name == "console")  # it speaks when all others have begun
    return Loggers([settings, *(LOGGERS.make(name, KEY, run) for name in in_order)])


def read_metrics(path: str | Path) -> list[dict[str, float]]:
    """The steps of a metrics.jsonl, oldest first; null becomes NaN and a torn last line is left out."""
    records = [json.loads(line) for _, line in _lines(Path(path))]
    return [{name: math.nan if value is None else value for name, value in record.items()} for record in records]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(step, line) of each line, verbatim. A last line that a kill left torn is skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return
            yield _step_of(path, number, line), line


def _step_of(path: Path, number: int, line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}, line {number}, is no record with a step; fix or remove that line") from None
