"""Finds records that a new run or branch in the same folder would overwrite or mix with its own."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agentrl.core.inside import is_inside
from agentrl.core.points import LOGGERS
from agentrl.tracking.loggers import CONFIG_FILE, METRICS_FILE, RECORD_FILE, TENSORBOARD_DIR
from agentrl.tracking.services.service import memory_file

Records = tuple[dict[Path, str], list[Path]]
"""(files to move, with names; files to copy)."""


def superseded_records(
    run_dir: Path, step: int, dumps: Sequence[str | None] = (), *, results: Iterable[Path] = ()
) -> Records:
    """The records that a branch which begins after `step` replaces; with step 0 those of a new run: all there are.

    Dumps of later steps, for a viewer shows all there are; what is known of runs in services, for a service cannot
    take steps back; a copy of settings and metrics, which lose their later lines. `dumps`: folders of dumps; one
    outside of the run's folder may be shared with other runs, and is left alone. `results`: what else a new run would
    replace.
    """
    own = [Path(folder) for folder in dumps if folder is not None and is_inside(Path(folder), run_dir)]
    after = step or -1  # a validation before the first step has a dump, too
    moves = {file: f"{folder.name}/{file.name}" for folder in own for file in _later(folder, after)}
    metrics, settings = run_dir / METRICS_FILE, [run_dir / CONFIG_FILE, run_dir / RECORD_FILE]
    known = [memory_file(run_dir, name) for name in LOGGERS]
    if step:
        return moves | _named(known), [metrics, *settings]
    moves |= _named(results)
    took_steps = metrics.exists() and metrics.stat().st_size
    if not moves and not took_steps:
        return {}, []
    # Metrics and dumps go last: after a kill, the next start moves the rest only where it finds some.
    return _named([*settings, run_dir / TENSORBOARD_DIR, *known, metrics]) | moves, []


def _named(files: Iterable[Path]) -> dict[Path, str]:
    return {file: file.name for file in files if file.exists()}


def _later(folder: Path, step: int) -> Iterator[Path]:
    """Dumps of steps above `step`, with their indices."""
    for file in folder.glob("*.jsonl"):
        if file.stem.isdecimal() and int(file.stem) > step:
            yield from filter(Path.exists, (file, file.with_name(f".{file.name}.index")))
