"""All launch scripts of verl: composed, refused with a reason, or read wrongly.

    python benchmarks/verl_scripts.py CHECKOUT [CHECKOUT ...]

Each shell script of each checkout is read by the code of `agentrl config check`, and run by bash in a bubblewrap
sandbox where `python3`, `torchrun`, `ray` and every program with an outside effect only record their arguments. Those
arguments are composed as `agentrl verl` composes them. A verdict is wrong when the words differ from bash's, or when
only one of the two stops.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentrl.cli.commands import Parser
from agentrl.cli.common import add_config_arguments, chosen_file
from agentrl.cli.main import parse
from agentrl.config import overrides, resolve
from agentrl.config.checks import staleness
from agentrl.config.schema import Config
from agentrl.config.schema.commands import SCHEMAS
from agentrl.config.validate import TRAINING
from agentrl.core.errors import UserError
from agentrl_verl.programs import arguments_of, find_program
from agentrl_verl.reading.file_check import CHECKED_AS, Checked, check_sources
from agentrl_verl.reading.launches import MARK, Word, find_launch
from agentrl_verl.reading.program_settings import Source
from agentrl_verl.reading.scripts import read_sources
from agentrl_verl.reading.verdicts import OF_FILES

NOTING = """python python3 torchrun ray pip pip3 uv conda git wget curl hf huggingface-cli modelscope nvidia-smi npu-smi
sleep srun scontrol sbatch docker apt apt-get ssh kill pkill ps nsys accelerate deepspeed tar unzip telnet hostname"""
"""Commands that only note their arguments."""
REAL = """basename dirname realpath readlink cat date tee mkdir rm mv cp ls touch sed awk grep tr head tail sort cut wc
seq env mktemp find nproc uname chmod expr true false timeout nohup whoami id"""
"""Commands that run, in the sandbox."""
SANDBOXED = """bwrap --ro-bind / / --dev /dev --proc /proc --tmpfs /home --dir /home/user --unshare-all
--die-with-parent --clearenv --setenv HOME /home/user"""
STUB = """#!/bin/bash
printf '%s\\0' "${{0##*/}}" "$@" >> "{log}"
printf '\\n\\0' >> "{log}"
for word in "$@"; do [ "$word" = "import torch_npu" ] && exit 1; done
exit 0
"""
SITE = {"HDFS_ROOT": "/tmp/hdfs", "RAY_DATA_HOME": "/tmp/ray", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_PER_NODE": "8"}
SITE |= {"DATA_ROOT": "/tmp/data", "ARNOLD_WORKER_NUM": "2", "ARNOLD_WORKER_GPU": "8"}
"""Variables that the clusters of verl's authors set."""
ASKED = ("8", "/tmp/save")
"""Arguments for scripts that ask for some."""
MACHINE = tuple(check for check in TRAINING if check.__module__ not in OF_FILES)
"""Checks that do not depend on the files of this machine."""


@dataclass
class Result:
    """One program that one script starts."""

    version: str
    script: str
    kind: str
    program: str
    outcome: str
    """composed, refused, stopped (no true reason), not served."""
    reason: str = ""
    wrong: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--list",
        metavar="OUTCOME",
        action="append",
        default=[],
        help="list scripts: composed, refused, stopped or wrong",
    )
    parser.add_argument("--only", metavar="PATTERN", default="", help="only scripts with this in their path or text")
    args = parser.parse_args()
    console = Console(width=200, highlight=False)
    known: Known = {}
    results: list[Result] = []
    for checkout in args.checkouts:
        found = study(checkout.absolute(), args.jobs, known, args.only)
        for result in found:
            if result.outcome in args.list or ("wrong" in args.list and result.wrong):
                console.print(f"{result.version}/{result.script} {result.program}: {result.reason}", markup=False)
                for text in result.wrong:
                    console.print(f"    {text}", markup=False)
        results += found
    console.print(table(results))
    console.print(reasons(results))


Known = dict[str, list["Result"]]
"""Results by the script's text: most scripts stay as they are from version to version."""


def study(checkout: Path, jobs: int, known: Known, only: str) -> list[Result]:
    """Every script of a checkout whose path or text has the pattern `only`."""
    paths = [path for path in sorted(checkout.rglob("*.sh")) if re.search(only, f"{path} {path.read_text()}")]
    scripts = {path.relative_to(checkout): key_of(checkout, path) for path in paths}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "verl"
        for path in [*checkout.rglob("*.sh"), *checkout.rglob("*.yaml"), *checkout.rglob("*.env")]:
            copy = tree / path.relative_to(checkout)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        new = [script for script, key in scripts.items() if key not in known]
        with ProcessPoolExecutor(jobs, initializer=keep_parsed) as pool:
            for script, found in zip(new, pool.map(partial(look, tree), new, chunksize=4), strict=True):
                known[scripts[script]] = found
    return [replace(one, version=checkout.name) for key in scripts.values() for one in known[key]]


def keep_parsed() -> None:
    """Parse a word once: most stand in many scripts."""
    overrides.parse_override = cache(overrides.parse_override)


def key_of(checkout: Path, script: Path) -> str:
    """The inputs of a script's result: its text, and the YAML files of its version if it chooses one."""
    text = script.read_text(errors="replace")
    return f"{checkout.name}: {text}" if "--config-" in text else text


def look(tree: Path, script: Path) -> list[Result]:
    """The programs of one script."""
    if (kind := kind_of(script, Source())) == "NPU":
        return [Result("", str(script), kind, "", "not looked at")]
    os.chdir(tree)
    os.environ["HOME"] = "/home/user"
    for name in [name for name in os.environ if name not in ("HOME", "PATH", "LANG", "TMPDIR")]:
        del os.environ[name]
    os.environ |= SITE
    try:
        sources = read_sources(script)
    except UserError as error:
        return [Result("", str(script), "other", "", "stopped", f"config check: {error}")]
    others = [source for source in sources if source.program and kind_of(script, source) == "NPU"]
    sources = [source for source in sources if source not in others]
    skipped = [Result("", str(script), kind_of(script, one), one.program, "not looked at") for one in others]
    truth = run_bash(tree, script, ()) if sources and not others else []
    asks = any("ARG_" in word for source in sources for word in source.words)
    if asks and not others and not truth:
        truth, sources = run_bash(tree, script, ASKED), read_sources(script, ASKED) or sources
    return [*skipped, *compared(script, list(check_sources(sources)), truth)]


def compared(script: Path, checked: Sequence[Checked], truth: list[list[str]]) -> Iterator[Result]:
    """Pair the programs that were read with those that bash started, in order."""
    left = list(truth)
    for one in checked:
        source = one.source
        if not source.program:
            continue
        match = next((words for words in left if pairs(source, words)), None)
        if match is not None:
            left = left[left.index(match) + 1 :]
        result = Result("", str(script), kind_of(script, source), source.program, *outcome_of(one))
        if match is not None:
            result.wrong = list(differences(one, match))
        elif truth and source.certain and not any(MARK.search(word) for word in [source.program]):
            result.wrong = ["bash starts no such program"]
        yield result
    if not checked and any(words[0].startswith(("verl.trainer", "recipe.")) for words in truth):
        yield Result("", str(script), "FSDP", truth[0][0], "stopped", "not read", ["bash starts it"])


def pairs(source: Source, words: list[str]) -> bool:
    return source.program == words[0] or MARK.search(source.program) is not None


def differences(one: Checked, words: list[str]) -> Iterator[str]:
    """Words that bash passes and that were read differently, and verdicts that differ."""
    read, passed = list(one.source.words), words[1:]
    if not alike(read, passed):
        pairs = [(a, b) for a, b in zip(read, passed, strict=False) if not alike([a], [b])]
        first = pairs[0] if pairs else (read[len(passed) :][:1], passed[len(read) :][:1])
        yield f"read {first[0]!r}, bash passes {first[1]!r}"
    if one.served:
        stops = stopped(one, passed)
        if bool(stops) != one.stops:
            yield f"check says {one.troubles[0] if one.stops else 'fine'}, a run says {stops or 'fine'}"


def alike(read: Sequence[str], passed: Sequence[str]) -> bool:
    """Whether words are the same but for their marks; a word that is a mark alone may be several or none."""
    separator = "\x01"
    shape = "".join(
        f"(?:[^{separator}]*{separator})*"
        if MARK.fullmatch(word)
        else "(?s:.*)".join(re.escape(part) for part in MARK.split(word)[::2]) + separator
        for word in read
    )
    return re.fullmatch(shape, "".join(word + separator for word in passed)) is not None


def stopped(one: Checked, words: Sequence[str]) -> str:
    """Why `agentrl verl` would refuse these words; "" when it would not."""
    program = find_program(one.source.program)
    if program is None or program.command not in CHECKED_AS:
        return ""
    parser = Parser(prog="agentrl")
    add_config_arguments(parser)
    try:
        args = parse(parser, arguments_of(program, words))
        name = chosen_file(args) or CHECKED_AS[program.command]
        schema = SCHEMAS[CHECKED_AS[program.command]]
        where = {"config_name": name, "config_dir": args.config_dir, "program": args.program}
        checks = [check for check in MACHINE if schema is Config or check.__module__ != staleness.__name__]
        resolve(args.overrides, **where, schema=schema, checks=checks)
    except UserError as error:
        return str(error)
    return ""


def kind_of(script: Path, source: Source) -> str:
    """Which engine and device a script is for."""
    text = " ".join([str(script), *source.words]).lower()
    if "npu" in text or "ascend" in text:
        return "NPU"
    if "megatron" in text or "mindspeed" in text:
        return "Megatron"
    if re.search(r"veomni|torchtitan|automodel|trtllm", text):
        return "other engine"
    return "FSDP"


def outcome_of(one: Checked) -> tuple[str, str]:
    if not one.served:
        return "not served", one.reason
    if not one.stops:
        return "composed", ""
    refused = all(each.kind not in ("unknown", "wrong") or each.text.startswith("choose ") for each in one.verdicts)
    return ("refused" if refused else "stopped"), one.troubles[0]


def run_bash(tree: Path, script: Path, arguments: Sequence[str]) -> list[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        log, stubs = Path(folder) / "log", Path(folder) / "bin"
        stubs.mkdir()
        for name in NOTING.split():
            (stubs / name).write_text(STUB.format(log=log))
            (stubs / name).chmod(0o755)
        for name in REAL.split():
            if real := shutil.which(name, path="/usr/bin:/bin"):
                (stubs / name).symlink_to(real)
        for name in ("bash", "sh"):
            (stubs / name).symlink_to("/bin/bash")
        site = [word for pair in SITE.items() for word in ("--setenv", *pair)]
        command = [
            *SANDBOXED.split(),
            *site,
            "--setenv",
            "PATH",
            str(stubs),
            "--bind",
            folder,
            folder,
            "--bind",
            str(tree),
            str(tree),
        ]
        command += ["--chdir", str(tree), "/bin/bash", str(script), *arguments]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, timeout=20, capture_output=True, check=False, stdin=subprocess.DEVNULL)
        return list(noted(log.read_text(errors="replace") if log.exists() else ""))


def noted(text: str) -> Iterator[list[str]]:
    for entry in text.split("\n\0"):
        words = entry.split("\0")[:-1]
        launch = find_launch([Word(word) for word in words]) if words else None
        if launch is not None and launch.program:
            yield [launch.program, *(word.text for word in launch.arguments)]


def table(results: Sequence[Result]) -> Table:
    """By version and kind."""
    shown = Table("version", "kind", "programs", "composed", "refused", "stopped", "not served", "wrong")
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        for version in (result.version, "all"):
            groups[version, result.kind].append(result)
    for (version, kind), found in sorted(groups.items()):
        counts = Counter(result.outcome for result in found)
        wrong = sum(bool(result.wrong) for result in found)
        numbers = [len(found), *(counts[name] for name in ("composed", "refused", "stopped", "not served")), wrong]
        shown.add_row(version, kind, *map(str, numbers))
    return shown


def reasons(results: Sequence[Result]) -> Table:
    """Why programs are not composed."""
    shown = Table("programs", "kind", "outcome", "reason")
    left = [result for result in results if result.outcome not in ("composed", "not looked at")]
    found = Counter((result.kind, result.outcome, result.reason) for result in left)
    for why, count in found.most_common():
        shown.add_row(str(count), *why)
    return shown


if __name__ == "__main__":
    main()
