"""Records from parquet, json and jsonl files.

Invariant: records keep the order of the files, and of the lines within them; parquet stays in Arrow's compact form and
becomes Python one record at a time.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from agentrl.errors import UserError
from agentrl.remote import local_copy
from agentrl.resources import find

Record = dict[str, Any]


class Table(Sequence[Record]):
    """A parquet file's records, made as they are asked for."""

    def __init__(self, file: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # ParquetFile, not read_table: the latter makes columns out of folder names like "seed=1".
            self.table = pq.ParquetFile(file, memory_map=True).read()
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{file} is not a parquet file: {str(error).splitlines()[0]}") from None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self.table.column_names)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        record: Record = self.table.slice(range(len(self))[index], 1).to_pylist()[0]
        return record


def paths(files: Any, what: str) -> list[Path]:
    """Existing local files out of one path or a list of them. Raises UserError naming the config key `what`."""
    names = [files] if isinstance(files, str | Path) else list(files or [])
    if not names:
        raise UserError(f"{what} names no file; set it to a parquet or jsonl file")
    return [_local(str(name), what) for name in names]


def _local(name: str, what: str) -> Path:
    file = find(local_copy(name, what), what=what)
    if not file.is_file():
        raise UserError(f"{what}: {file} is a folder; name the files in it")
    return file


def read_records(file: Path) -> Sequence[Record]:
    """The records of one file, by its ending: .parquet, .jsonl, or .json (a list of objects, or lines of them)."""
    if file.suffix == ".parquet":
        return Table(file)
    if file.suffix not in (".json", ".jsonl"):
        raise UserError(f"{file}: cannot tell its format; name it .parquet, .json or .jsonl")
    text = file.read_text(encoding="utf-8")
    records = _parse(text, str(file)) if text.lstrip().startswith("[") else _lines(text, file)
    if broken := [number for number, record in enumerate(records, 1) if not isinstance(record, dict)]:
        raise UserError(f"{file}:{broken[0]} is not a JSON object")
    return records


def _lines(text: str, file: Path) -> list[Any]:
    # Not splitlines(): that also cuts at U+2028 and its like, which JSON text may hold as they are.
    return [_parse(line, f"{file}:{number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, or numbers and nesting that Python does not read
        raise UserError(f"{place} is not JSON: {error}") from None
