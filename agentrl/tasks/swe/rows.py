"""Rows of SWE sets, as they are published: `data.train_files=swe:FILE`.

SWE-bench and its kin (Lite, Verified, Live), SWE-Gym, SWE-smith, R2E-Gym, SWE-rebench, and rows of these inside of
NeMo Gym's. After a question mark, `name=PATTERN` chooses instances, `broken=skip` leaves out rows that no rule reads,
and other words are fields of the container, as in `extra_info.container`.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from shlex import quote
from typing import Any
from urllib.parse import parse_qsl

import yaml

from agentrl.config.schema import Data
from agentrl.core.errors import UserError
from agentrl.core.foreign import read_json
from agentrl.core.points import row_source
from agentrl.data.files import paths, read_records
from agentrl.data.lazy import ChosenRows
from agentrl.data.plain import mapping, plain
from agentrl.data.rows import RecordRows
from agentrl.tasks.swe.format import SweTask
from agentrl.tasks.swe.logs import COLOURS, FAIL_TO_PASS, PASS_TO_PASS, RULES
from agentrl.trajectory.row import Row

KNOWN = {repo: rule | {"set": name} for name, rules in RULES["repositories"].items() for repo, rule in rules.items()}
ACTIVATE = "[ ! -f /opt/miniconda3/bin/activate ] || . /opt/miniconda3/bin/activate testbed"
PROMPT = "Change the repository in the working folder so that this issue is resolved. Hidden tests check it.\n\n"


@row_source("swe", scored=True)
def swe_rows(argument: str, *, data: Data) -> Sequence[Row]:
    """The rows of a file. Raises UserError."""
    path, _, query = argument.partition("?")
    (file,), options = paths(path, "swe:FILE"), dict(parse_qsl(query))
    name, skip, fine = options.pop("name", "*"), options.pop("broken", "") == "skip", list[int]()
    rows = SweRows(read_records(file), file.stem, data)
    rows.container = {key: yaml.safe_load(value) for key, value in options.items()}
    for number in range(len(rows)):
        try:
            SweTask(rows[number].extra_info["task"])
            fine += [number] if fnmatch(rows[number].extra_info["instance_id"], name) else []
        except (UserError, ValueError, TypeError, KeyError) as error:
            if not skip:
                fix = f"correct it, or leave such rows out: swe:{path}?broken=skip"
                raise UserError(f"{file}:{number + 1}: {error}; {fix}") from None
    return ChosenRows(rows, fine)


class SweRows(RecordRows):
    """Rows of one file."""

    container: Mapping[str, Any]
    """Fields that count more than a row's."""

    def row(self, index: int) -> Row:
        record = self.records[index]
        inner = mapping(mapping(record.get("responses_create_params")).get("metadata"))
        row = {**plain(record), **inner, **mapping(inner.get("instance_dict"))}
        row.setdefault("instance_id", f"{row.get('repo_name')}-{row.get('commit_hash')}")
        _check(row)
        text, task = row["problem_statement"], task_of(row)
        task["container"] |= self.container
        issue = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", text, re.DOTALL)
        return Row(
            f"swe:{self.name}:{row['instance_id']}",
            [{"role": "user", "content": PROMPT + (issue[1] if issue else text).strip()}],
            data_source=self.name,
            ability=row.get("repo"),
            extra_info={"task": task, "instance_id": row["instance_id"]},
        )


def _check(row: Mapping[str, Any]) -> None:
    """Raises UserError for a row without an issue, and for a column of another type."""
    for key, right in RULES["columns"].items():
        value = row.get(key, None if key == "problem_statement" else "")
        listed = "list" in right and isinstance(value, list) and all(isinstance(one, str) for one in value)
        if not (listed or isinstance(value, str)):
            raise UserError(f"{key} is {str(value)[:60]!r}: write {right} there")


def task_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The task of a row, by the rules of its set. Raises UserError for what neither the row nor a rule says."""
    repo, install = str(given.get("repo", "r2e-gym")).lower(), mapping(given.get("install_config"))
    row = {**(KNOWN.get(repo) or KNOWN.get(repo.partition("/")[0], {})), **install, **given}
    kind = str(row.get("log_parser") or "pytest").removeprefix("parse_log_")
    if kind not in RULES["formats"]:
        raise UserError(f"nothing reads logs of {kind!r}; there are {', '.join(RULES['formats'])}")
    expected = {COLOURS.sub("", name): status for name, status in mapping(row.get("expected_output_json")).items()}
    tests: dict[str, Any] = {"expected": {name.split(" - ")[0]: status for name, status in expected.items()}}
    names = {} if expected else {key: _names(row, key) for key in (FAIL_TO_PASS, PASS_TO_PASS)}
    broken, whole = (
        [n.partition("::")[0] for n in names.get(key, ()) if "::" in n] for key in (FAIL_TO_PASS, PASS_TO_PASS)
    )
    patched = re.findall(r"^diff --git a/\S+ b/(\S+)$", row.get("test_patch") or "", re.MULTILINE)
    hidden = list(dict.fromkeys(row.get("hidden") or (broken if row.get("bug") else ())))
    files = list(dict.fromkeys([*hidden, *patched, *broken, *whole]))
    tests |= {"names": names, "log": kind, "files": files, "hide": len(hidden)}
    tests |= {"test": row.get("test_patch"), "bug": row["patch"] if row.get("bug") else None}
    command = given.get("test_cmds") or row.get("test_cmd")
    if not command:
        raise UserError(f"nothing says how the tests of {repo} run: add a column test_cmd")
    if isinstance(command, str) and not given.get("test_cmd"):
        command = " ".join([command, *_targets(patched or files, kind)])
    folder = f"/{repo.rpartition('/')[2]}" if isinstance(install.get("test_cmd"), list) else None
    own = {"image": _image(row, given), "workdir": row.get("workdir", folder), "set_up": row.get("set_up")}
    own |= {"verify": "\n".join([ACTIVATE, _lines(row.get("rebuild_cmds")), _lines(command)])}
    container = RULES["container"] | {key: value for key, value in own.items() if value is not None}
    return {"format": "swe", "container": {key: v for key, v in container.items() if v != ""}, "tests": tests}


def _names(row: Mapping[str, Any], key: str) -> list[str]:
    """A column of tests: a list, or its JSON text."""
    found = row.get(key) or []
    with suppress(ValueError):
        found = read_json(found) if isinstance(found, str) else found
    texts = isinstance(found, list) and all(isinstance(name, str) for name in found)
    if not texts or not (found or key == PASS_TO_PASS):
        raise UserError(f"{key} is {str(row.get(key, ''))[:60]!r}: write a list of tests there")
    return list(found)


def _image(row: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """The image that a row names, or its set's name for it."""
    for key in ("image_name", "docker_image", "image"):
        if isinstance(row.get(key), str):
            return str(row[key])
    by_column = {"test_cmds": "SWE-bench-Live", "install_config": "SWE-rebench"}
    kind = next((name for column, name in by_column.items() if given.get(column)), row.get("set"))
    if kind not in RULES["images"]:
        raise UserError("no column names its image, and its set is unknown: add a column image_name")
    owner, underscores = RULES["images"][kind]
    return f"{owner}/sweb.eval.x86_64.{row['instance_id'].lower().replace('__', underscores)}"


def _lines(commands: Any) -> str:
    return "\n".join(commands) if isinstance(commands, list) else commands or ""


def _targets(files: Sequence[str], kind: str) -> list[str]:
    """The files of tests, as arguments of the test command; Django's are modules."""
    chosen = [file for file in files if not file.endswith(tuple(RULES["no_tests"]))]
    if kind == "django":
        modules = [file for file in chosen if re.search(r"(^|/)(tests\.py|test_[^/]*)$|/tests?[/_]", file)]
        chosen = [file.removesuffix(".py").removeprefix("tests/").replace("/", ".") for file in modules]
    return [quote(file) for file in chosen]
