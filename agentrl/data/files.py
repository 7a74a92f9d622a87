"""Records from parquet, json, jsonl and CSV files.

Invariant: records keep the order of the files, and of the lines within them; parquet stays in Arrow's compact form and
becomes Python one record at a time.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError, plural
from agentrl.core.remote_files import local_copy
from agentrl.core.resources import find, read_text
from agentrl.data.lazy import Lazy

Record = dict[str, Any]

SEPARATORS = {".csv": ",;\t", ".tsv": "\t"}
"""Possible separators of cells; the most frequent one in the header is used."""
MAX_CELL_CHARACTERS = 2**31 - 1
JSON_COLUMNS = ("prompt", "messages")
"""Columns whose cells may hold JSON. (reward_model, extra_info and their like may anyway, in files of every kind.)"""


class Table(Lazy[Record]):
    """The records of a parquet file, read on access."""

    def __init__(self, file: Path) -> None:
        self.table = _from_parquet(file, lambda opened: opened.read())

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self.table.column_names)

    def values(self, name: str) -> Iterator[Any]:
        """One column in chunks; nothing if there is no such column."""
        if name in self.table.column_names:
            for batch in self.table.select([name]).to_batches(max_chunksize=1024):
                yield from batch.column(0).to_pylist()

    def row(self, index: int) -> Record:
        record: Record = self.table.slice(index, 1).to_pylist()[0]
        return record


def paths(files: Any, what: str) -> list[Path]:
    """Existing local files of a path or a list of paths. Raises UserError naming the config key `what`."""
    names = [files] if isinstance(files, str | Path) else list(files or [])
    if not names:
        raise UserError(f"{what} names no file; set it to a parquet, jsonl or CSV file")
    found = [find(local_copy(str(name), what), what=what) for name in names]
    for folder in (file for file in found if not file.is_file()):
        raise UserError(f"{what}: {folder} is a folder; name the files in it")
    return found


def read_records(file: Path) -> Sequence[Record]:
    """The records of one file, by its ending: .parquet, .csv, .tsv, .jsonl, or .json (a list of objects, or lines of
    them). Raises UserError."""
    if file.suffix == ".parquet":
        return Table(file)
    if file.suffix in SEPARATORS:
        return _cells(read_text(file), file)
    if file.suffix not in (".json", ".jsonl"):
        raise UserError(f"{file}: cannot tell its format; name it .parquet, .jsonl, .json or .csv")
    text = read_text(file)
    records = _parse(text, str(file)) if text.lstrip().startswith("[") else _lines(text, file)
    if broken := [number for number, record in enumerate(records, 1) if not isinstance(record, dict)]:
        raise UserError(f'{file}:{broken[0]} is not a JSON object: write {{"prompt": ...}}')
    return records


def first_record(file: Path) -> Record | None:
    """The first record of a file, without the others where its format allows that; None without one.

    Raises UserError for a file that is not there or cannot be read.
    """
    if file.suffix == ".parquet":
        batch = _from_parquet(file, lambda opened: next(opened.iter_batches(batch_size=1), None))
        return next(iter(batch.to_pylist()), None) if batch is not None else None
    if file.suffix in (".json", ".jsonl"):
        with file.open(encoding="utf-8-sig", errors="replace") as lines:
            line = next((line for line in lines if line.strip()), "")
        if not line.lstrip().startswith("["):
            return _parse(line, f"{file}:1") if line else None
    return next(iter(read_records(file)), None)


def _from_parquet(file: Path, read: Callable[[Any], Any]) -> Any:
    """The result of `read` for the opened file. Raises UserError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # ParquetFile, not read_table: the latter makes columns out of folder names like "seed=1".
        return read(pq.ParquetFile(file, memory_map=True))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{file} is not a parquet file: {reason}; name it by what it holds: .jsonl or .csv") from None


def _cells(text: str, file: Path) -> list[Record]:
    """CSV with a header. A cell is text; an empty one is missing."""
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    header, _, _ = text.partition("\n")
    separator = max(SEPARATORS[file.suffix], key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        names = [name.strip() for name in next(reader, [])]
        if doubled := {name for name in names if names.count(name) > 1}:
            raise UserError(f"{file}: two columns are named {min(doubled)!r}: rename one")
        return [_record(names, cells, f"{file}:{reader.line_num}") for cells in reader if cells]
    except csv.Error as error:
        raise UserError(f"{file}:{reader.line_num} is not CSV: {error}") from None


def _record(names: Sequence[str], cells: Sequence[str], where: str) -> Record:
    if len(cells) != len(names):
        raise UserError(
            f"{where} has {plural(len(cells), 'cell')}, and the header {len(names)} ({', '.join(names)}): put text "
            'with commas or line breaks in double quotes, and write a double quote in it as ""'
        )
    return {name: _structured(name, cell) for name, cell in zip(names, cells, strict=True) if name}


def _structured(name: str, cell: str) -> Any:
    """The text of a cell; a JSON list of messages is parsed."""
    if name in JSON_COLUMNS and cell.lstrip().startswith("[{"):
        with suppress(ValueError):
            return json.loads(cell)
    return cell or None


def _lines(text: str, file: Path) -> list[Any]:
    # Not splitlines(): that also cuts at U+2028 and its like, which JSON text may hold as they are.
    return [_parse(line, f"{file}:{number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, or numbers and nesting that Python does not read
        raise UserError(f"{where} is not JSON: {error}; correct that line, or remove it") from None
