"""Rows of SWE sets, as they are published: `data.train_files=swe:FILE`.

SWE-bench and its kin (Lite, Verified, Live), SWE-Gym, SWE-smith, R2E-Gym, SWE-rebench, and rows of these inside of
NeMo Gym's. After a question mark, `name=PATTERN` chooses instances, `broken=skip` leaves out rows that no rule reads,
and other words are fields of the container, as in `extra_info.container`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import parse_qsl

import yaml

from agentrl.core.errors import UserError
from agentrl.core.points import row_source
from agentrl.data.files import paths, read_records
from agentrl.data.lazy import LazyRows
from agentrl.data.plain import mapping, plain
from agentrl.tasks.swe.format import SweTask
from agentrl.tasks.swe.logs import COLOURS, NAMES, format_of
from agentrl.trajectory.row import Row

RULES = yaml.safe_load((Path(__file__).parent / "repositories.yaml").read_text(encoding="utf-8"))
KNOWN = {repo: rule | {"set": name} for name, rules in RULES.items() for repo, rule in rules.items()}
IMAGES = {
    "SWE-bench": ("swebench", "_1776_"),
    "SWE-Gym": ("xingyaoww", "_s_"),
    "SWE-bench-Live": ("starryzhang", "_1776_"),
    "SWE-rebench": ("swerebench", "_1776_"),
}
"""Set: who publishes its images, and what stands for the two underscores of an instance's name in theirs."""
R2E = "[ ! -d /r2e_tests ] || { rm -rf r2e_tests; mv /r2e_tests .; }"
SMITH_TEST = "pytest --disable-warnings --color=no --tb=no --verbose"
ACTIVATE = "[ ! -f /opt/miniconda3/bin/activate ] || . /opt/miniconda3/bin/activate testbed"
CONTAINER = {"workdir": "/testbed", "cpus": 2, "memory_mb": 8192, "processes": 2048, "verify_timeout": 1800}
NO_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
PROMPT = "Change the repository in the working folder so that this issue is resolved. Hidden tests check it.\n\n"


class SweRows(LazyRows):
    """Rows of one file."""

    def __init__(self, file: Path, options: Mapping[str, str]) -> None:
        """Raises UserError where no rule reads a row."""
        self.records, self.file, self.options = read_records(file), file, dict(options)
        name, skip = self.options.pop("name", "*"), self.options.pop("broken", "") == "skip"
        self.numbers = [n for n, record in enumerate(self.records) if self._is_fine(n, record, name, skip=skip)]

    def __len__(self) -> int:
        return len(self.numbers)

    def row(self, index: int) -> Row:
        return self._row(self.records[self.numbers[index]])

    def _is_fine(self, number: int, record: Mapping[str, Any], name: str, *, skip: bool) -> bool:
        try:
            row = self._row(record)
            SweTask(row.extra_info["task"])
        except (UserError, ValueError, TypeError) as error:
            if not skip:
                fix = f"correct it, or leave such rows out: swe:{self.file}?broken=skip"
                raise UserError(f"{self.file}:{number + 1}: {error}; {fix}") from None
            return False
        return fnmatch(row.extra_info["instance_id"], name)

    def _row(self, record: Mapping[str, Any]) -> Row:
        given = flat(record)
        task = task_of(given)
        task["container"] |= {key: yaml.safe_load(value) for key, value in self.options.items()}
        issue = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", text := given["problem_statement"], re.DOTALL)
        return Row(
            f"swe:{self.file.name}:{name_of(given)}",
            [{"role": "user", "content": PROMPT + (issue[1] if issue else text).strip()}],
            data_source=self.file.stem,
            ability=given.get("repo"),
            extra_info={"task": task, "instance_id": name_of(given)},
        )


@row_source("swe", scored=True)
def swe_rows(argument: str) -> Sequence[Row]:
    """The rows of a file. Raises UserError."""
    path, _, query = argument.partition("?")
    (file,) = paths(path, "swe:FILE")
    return SweRows(file, dict(parse_qsl(query)))


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a record; those of NeMo Gym lie deeper, as JSON text."""
    inner = mapping(mapping(record.get("responses_create_params")).get("metadata"))
    return {**plain(record), **inner, **mapping(inner.get("instance_dict"))}


def name_of(row: Mapping[str, Any]) -> str:
    """An instance's name; R2E-Gym has a commit instead."""
    return str(row.get("instance_id") or f"{row.get('repo_name')}-{row.get('commit_hash')}")


def task_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The task of a row, by the rules of its set. Raises UserError for what neither the row nor a rule says."""
    if "expected_output_json" in row:
        return _r2e(row)
    install, known = mapping(row.get("install_config")), KNOWN.get(str(row.get("repo")).lower(), {})
    names, patch = {key: _names(row, key) for key in NAMES}, row.get("test_patch") or ""
    image = _image(row, install, known)
    is_smith = "swesmith" in f"{image} {row.get('repo')}"
    broken, whole = (list(dict.fromkeys(n.partition("::")[0] for n in names[key] if "::" in n)) for key in NAMES)
    patched = [file for pair in re.findall(r"^diff --git a/(\S+) b/(\S+)$", patch, re.MULTILINE) for file in pair]
    files = list(dict.fromkeys([*broken, *patched, *whole]))
    kind = format_of(install.get("log_parser") or row.get("log_parser") or known.get("log", "pytest"))
    base = install.get("test_cmd") or known.get("test") or (SMITH_TEST if is_smith else None)
    if not (test := _lines(row.get("test_cmds") or row.get("test_cmd"))):
        targets = [] if isinstance(base, list) else _targets(list(dict.fromkeys(patched)) or files, kind)
        test = " ".join([_lines(base), *targets])
    if not test.strip():
        raise UserError(f"nothing says how the tests of {row.get('repo')} run: add a column test_cmd")
    build = _lines(row.get("rebuild_cmds")) or known.get("build", "")
    folder = f"/{str(row['repo']).split('/')[-1]}" if isinstance(base, list) else CONTAINER["workdir"]
    own = {"workdir": row.get("workdir", folder), "set_up": row.get("set_up"), "image": image}
    tests = {"test": patch, "bug": row["patch"] if is_smith else "", "files": files, "log": kind, **names}
    given = CONTAINER | own | {"verify": "\n".join([ACTIVATE, build, test])}
    container = {key: value for key, value in given.items() if value not in (None, "")}
    return {"format": "swe", "container": container, "tests": tests | {"hide": len(broken) if is_smith else 0}}


def _r2e(row: Mapping[str, Any]) -> dict[str, Any]:
    """R2E-Gym's images have the tests, and a row the statuses that a right change has."""
    written = {COLOURS.sub("", name): status for name, status in mapping(row["expected_output_json"]).items()}
    given = {"image": row["docker_image"], "set_up": R2E, "verify": "bash run_tests.sh"}
    tests = {"hide": 2, "files": ["run_tests.sh", "r2e_tests"]}
    tests["expected"] = {name.split(" - ")[0]: status for name, status in written.items()}
    return {"format": "swe", "container": CONTAINER | given, "tests": tests}


def _names(row: Mapping[str, Any], key: str) -> list[str]:
    """A column of tests: a list, or its JSON text."""
    value = row.get(key) or []
    found = json.loads(value) if isinstance(value, str) else value
    if (
        not isinstance(found, list)
        or not all(isinstance(name, str) for name in found)
        or (key == NAMES[0] and not found)
    ):
        raise UserError(f"{key} is {str(value)[:60]!r}: write a list of tests there")
    return found


def _image(row: Mapping[str, Any], install: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """The image that a row names, or its set's name for it."""
    for key in ("image_name", "docker_image", "image"):
        if isinstance(row.get(key), str):
            return str(row[key])
    kind = "SWE-bench-Live" if row.get("test_cmds") else "SWE-rebench" if install else known.get("set")
    if kind is None:
        raise UserError("no column names its image, and its set is unknown: add a column image_name")
    owner, underscores = IMAGES[kind]
    return f"{owner}/sweb.eval.x86_64.{name_of(row).lower().replace('__', underscores)}"


def _lines(commands: Any) -> str:
    return "\n".join(commands) if isinstance(commands, list) else commands or ""


def _targets(files: Sequence[str], kind: str) -> list[str]:
    """The files of tests, as arguments of the test command; Django's are modules."""
    if kind != "django":
        return [quote(file) for file in files if not file.endswith(NO_TESTS)]
    modules = [file for file in files if re.search(r"(^|/)(tests\.py|test_[^/]*)$|/tests?[/_]", file)]
    return [quote(file.removesuffix(".py").removeprefix("tests/").replace("/", ".")) for file in modules]
