"""The records of a run that a new branch of it would overwrite, or mix with its own."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentrl.tracking.loggers import METRICS_FILE
from agentrl.tracking.services import SERVICES
from agentrl.tracking.services.service import memory_file


def superseded_records(
    run_dir: Path, step: int, dumps: Sequence[str | None] = ()
) -> tuple[dict[Path, str], list[Path]]:
    """What a branch that begins after `step` leaves behind: (files to move, with names; files to copy).

    Dumps of later steps, for a viewer shows all there are; what is known of runs in services, for a service cannot
    take steps back; a copy of the metrics, which lose their later lines. `dumps`: folders of dumps; one outside of the
    run's folder may be shared with other runs, and is left alone.
    """
    own = [Path(folder) for folder in dumps if folder is not None and _within(Path(folder), run_dir)]
    moves = {file: f"{folder.name}/{file.name}" for folder in own for file in _later(folder, step)}
    known = (memory_file(run_dir, name) for name in SERVICES)
    return moves | {file: file.name for file in known if file.exists()}, [run_dir / METRICS_FILE]


def _within(folder: Path, run_dir: Path) -> bool:
    return folder.resolve().is_relative_to(run_dir.resolve())


def _later(folder: Path, step: int) -> Iterator[Path]:
    """Dumps of steps above `step`, with their indices."""
    for file in folder.glob("*.jsonl"):
        if file.stem.isdecimal() and int(file.stem) > step:
            yield from filter(Path.exists, (file, file.with_name(f".{file.name}.index")))
