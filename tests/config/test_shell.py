"""Shell scripts are read as bash reads them: each construct, word by word beside the real bash."""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.config.sources import read_sources
from agentrl.config.sources.shell.marks import MARK
from agentrl.core.errors import UserError

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="compares with bash")
STUB = '#!/bin/bash\nprintf "%s\\0" "$@" >> "$LOG"\nprintf "\\n\\0" >> "$LOG"\n'
RUN = "python3 -m verl.trainer.main_ppo"


def passed_by_bash(script: Path, arguments: list[str]) -> list[list[str]]:
    """What each python3 that the script starts gets."""
    stubs, log = script.parent / "bin", script.parent / "log"
    stubs.mkdir(exist_ok=True)
    for name in ("python3", "torchrun", "ray"):
        (stubs / name).write_text(STUB)
        (stubs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "LOG": str(log)}
    subprocess.run([BASH, str(script), *arguments], env=environment, capture_output=True, timeout=30, check=False)
    text = log.read_text() if log.exists() else ""
    log.unlink(missing_ok=True)
    calls = [call.split("\0")[:-1] for call in text.split("\n\0")[:-1]]
    return [call[call.index("-m") + 2 :] for call in calls]


def read(script: Path, arguments: list[str]) -> list[list[str]]:
    return [list(source.words) for source in read_sources(script, arguments)]


PARTS = re.split(r"^#### (.*)\n", Path(__file__).with_name("shell_cases.txt").read_text(), flags=re.MULTILINE)
CASES = dict(zip(PARTS[1::2], PARTS[2::2], strict=True))


@needs_bash
@pytest.mark.parametrize("name", CASES)
def test_read_as_bash_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    for variable in ("x", "y", "z", "a", "b", "c", "n", "X", "Y", "Z", "B", "A", "LR"):
        monkeypatch.delenv(variable, raising=False)
    script = tmp_path / "run.sh"
    script.write_text(CASES[name])
    for arguments in ([], ["5", "--lr", "a.q=1 2"]):
        found, truth = read(script, arguments), passed_by_bash(script, arguments)
        if "&" in CASES[name].split("wait")[0] and "nohup" in CASES[name]:
            found, truth = sorted(found), sorted(truth)
        assert [[as_unset(word) for word in words] for words in found] == truth


def as_unset(word: str) -> str:
    """A variable that nobody sets is a mark here, and empty in bash."""
    return MARK.sub("", word)


SIGNS = " \n;&|()<>{}[]\"'`$\\#=!*"
WORDS = ("if ", "then ", "fi", "for ", "do ", "done", "case ", "in ", "esac", "a.b=1", "x=", "$(", "${x", "((", "))")
WORDS += ("[[ ", "]]", "<<E\n", "E\n", "$x", "${x:-", "f() {", "python3 ", "eval ", "shift")


@given(st.lists(st.sampled_from([*SIGNS, *WORDS]), max_size=25))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_to_its_end(tmp_path: Path, pieces: list[str]) -> None:
    script = tmp_path / "any.sh"
    script.write_text("".join(pieces))
    with suppress(UserError):  # of a loop that does not end
        assert all(source.line >= 0 for source in read_sources(script))


def one(tmp_path: Path, text: str, arguments: tuple[str, ...] = ()) -> list[list[str]]:
    script = tmp_path / "run.sh"
    script.write_text(text)
    return [[MARK.sub(r"<\1>", word) for word in source.words] for source in read_sources(script, arguments)]


def test_what_only_a_machine_knows_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODES", raising=False)
    text = f'x=$(date +%s)\n{RUN} a.b=r-$x a.c=$NODES a.d=$((NODES * 2)) a.e=$RANDOM "a.f=$(nvidia-smi | wc -l)"\n'
    assert one(tmp_path, text) == [["a.b=r-<COMMAND>", "a.c=<NODES>", "a.d=<NUMBER>", "a.e=<RANDOM>", "a.f=<COMMAND>"]]


def test_both_ways_of_an_unknown_condition_are_read(tmp_path: Path) -> None:
    text = (
        f"if [ -d /data ]; then d=/data; n=1; else d=/tmp; n=1; fi\nif nvidia-smi; then {RUN} a.b=$d a.n=$n\n"
        f"else exit 1; fi\ncase $(hostname) in a) e=1;; b) {RUN} a.c=1;; esac\n{RUN} a.e=$e\n"
    )
    script = tmp_path / "run.sh"
    script.write_text(text)
    sources = read_sources(script)
    words = [[MARK.sub("?", word) for word in source.words] for source in sources]
    assert words == [["a.b=?", "a.n=1"], ["a.c=1"], ["a.e=?"]]
    assert [source.certain for source in sources] == [False, False, True]


def test_a_script_that_asks_for_arguments_is_read_without(tmp_path: Path) -> None:
    text = (
        'if [ "$#" -lt 2 ]; then echo "Usage: run.sh <gpus> <folder>"; exit 1; fi\ngpus=$1; out=$2; shift 2\n'
        f'{RUN} trainer.n_gpus_per_node=$gpus trainer.default_local_dir="$out/${{3:-x}}" "$@"\n'
    )
    (words,) = one(tmp_path, text)
    assert words == ["trainer.n_gpus_per_node=<ARG_1>", "trainer.default_local_dir=<ARG_2>/<ARG_3>"]
    (words,) = one(tmp_path, text, ("8", "/out", "a.b=c d"))
    assert words == ["trainer.n_gpus_per_node=8", "trainer.default_local_dir=/out/x", "a.b=c d"]


def test_settings_that_a_comment_cuts_off_are_named(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{RUN} \\\n  a.b=1 \\\n  # a.c=2 \\\n  a.d=3 \\\n  a.e=4\n")
    (source,) = read_sources(script)
    assert source.words == ("a.b=1",)
    assert source.lost == [(4, "a.d=3"), (4, "a.e=4")]


def test_lines_are_those_of_the_words(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f'A=(\n  a.b=1\n  "a.c=2"\n)\nf() {{\n  {RUN} \\\n    "${{A[@]}}" \\\n    a.d=$1\n}}\nf 4\n')
    (source,) = read_sources(script)
    assert [(given.path, given.line) for given in source.settings] == [("a.b", 2), ("a.c", 3), ("a.d", 8)]
    assert source.line == 6


def test_a_loop_without_an_end_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not end"):
        one(tmp_path, "while true; do x=1; done\n")
    with pytest.raises(UserError, match="without an end"):
        one(tmp_path, "f() { f; }\nf\n")


def test_nothing_is_started_and_nothing_written(tmp_path: Path) -> None:
    one(tmp_path, f"touch {tmp_path}/made; rm -rf {tmp_path}; echo x > {tmp_path}/made; y=$(touch {tmp_path}/made)\n")
    assert [file.name for file in tmp_path.iterdir()] == ["run.sh"]


def test_a_variable_that_has_to_be_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODES", raising=False)
    script = tmp_path / "run.sh"
    script.write_text(f"set -xeuo pipefail\nn=$NODES\n{RUN} trainer.nnodes=$n\n")
    (source,) = read_sources(script)
    assert source.mistakes == [(2, "NODES is not set, and set -u ends the script")]
    monkeypatch.setenv("NODES", "2")
    (source,) = read_sources(script)
    assert (source.mistakes, source.words) == ([], ("trainer.nnodes=2",))
