"""Shell scripts are read as bash reads them: each construct, word by word beside the real bash."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.config.sources import read_sources
from agentrl.config.sources.shell.marks import MARK
from agentrl.errors import UserError

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


CASES = {
    "defaults": 'a=; b=x\n{run} a.b=${{a:-2}} a.c=${{a-3}} a.d=${{c:=4}} a.e=$c a.f=${{b:+y}} a.g=${{z:+y}} a.h=${{b:-n}} a.i=${{b+q}}',
    "nested defaults": 'y="a b"\n{run} a.b=${{x:-${{y:-1}}}} a.c="${{x:-"${{y}}/d"}}" a.d=${{x:-$y}} a.e=${{x:-\'q q\'}} "a.f=${{x:-\'q\'}}"',
    "positional": 'ENGINE=${{1:-vllm}}\nshift 1 || true\n{run} a.b=$ENGINE a.n=$# "$@" a.c=${{1:-none}}',
    "all arguments": 'set -- "a.x=1 2" a.y=3\n{run} "$@"\n{run} $@ $*\n{run} "a.z=$*" a.k=${{@:2}}',
    "arrays": 'A=(a.b=1   # one\n  "a.c=2 3"\n  a.d=$((1+1)))\nA+=(a.e=5)\n{run} "${{A[@]}}" a.n=${{#A[@]}} a.f=${{A[1]}} a.l=${{A[-1]}} ${{A[*]}} "${{A[@]:1:2}}"',
    "empty arrays": 'A=()\n{run} a.b=1 "${{A[@]}}" ${{A[@]}} "${{A[@]/a/b}}" a.c=2 "${{B[@]}}"',
    "tables": 'declare -A T=([x]=1 [y]="2 3")\nT[z]=4\n{run} a.b=${{T[x]}} "a.c=${{T[y]}}" a.d=${{T[z]}} a.n=${{#T[@]}}',
    "quotes in quotes": "files=\"['/a/x y.parquet', '/b']\"\n{run} data.train_files=\"$files\" 'a.b=[\"c\",\"w\"]' a.c=['c','d'] a.d=\"['a','b']\" a.e=\\'x\\' a.f=\"\\$x \\\\ \\\"q\\\"\"",
    "dollar quotes": "{run} a.b=$'x\\ty' a.c=\"$\" a.d=$ a.e=\\$HOME",
    "continued lines": '{run} \\\n  a.b=1 \\\n  a.c="x\\\ny" \\\n  a.d=2',
    "a comment ends the command": "{run} \\\n  a.b=1 \\\n  # a.c=2 \\\n  a.d=3 \\\n  a.e=4\n",
    "a blank behind the backslash": "{run} \\\n  a.b=1 \\ \n  a.c=2\n",
    "hash in a word": "x=y#z # comment\n{run} a.b=$x#1 a.c=a#b #a.d=2",
    "home": 'cd /\n{run} a.b=~/x a.c=$HOME "a.d=~" ~/y ~ a.e=${{x:-~/z}}',
    "paths": 'F="/a/b c/d.tar.gz"\n{run} a.b="$(dirname "$F")" a.c=$(basename /x/y.sh .sh) a.d=${{F##*/}} a.e=${{F%.*}} a.f=${{F%%.*}} a.g="${{F#*/}}" a.h="${{F/b c/z}}" a.i=${{F//\\//-}}',
    "own folder": 'D="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"\n{run} a.b="$D" a.c="$(basename -- "$0")" a.d=`pwd`',
    "case of letters": 'M=Qwen/Qwen2\n{run} a.b=${{M,,}} a.c=${{M^^}} a.d=${{M:0:4}} a.e=${{M: -2}} a.f=${{#M}} a.g=${{M:5}}',
    "sums": 'n=8; m=n\n{run} a.b=$((n*(2+1)/5%4)) a.c=$((m+1)) a.d=$(((n+1)*2)) a.e=$((n>4?1:0)) a.f=$((2**10)) a.g=$((-7/2)) a.h=$((n<<2|1)) a.i=$((n==8&&n!=7)) a.j=$((n++)) a.k=$n a.l=$((${{n}}*2)) a.m=$((0x10)) a.n=$(( n += 3 )) a.o=$[1+1]',
    "let and sums as commands": 'i=0\n((i++))\nif (( i > 0 )); then i=$((i+5)); fi\n{run} a.b=$i',
    "if": 'x=a\nif [ "$x" = "b" ]; then v=1; elif [[ $x == a* && -n $x ]]; then v=2; else v=3; fi\n[ -z "$y" ] && w=1 || w=2\n[[ $x != "a*" ]] && u=1\n{run} a.b=$v a.c=$w a.d=$u',
    "tests": 't=; for e in \'-z ""\' \'-n x\' \'a = a\' \'1 -lt 2\' \'3 -ge 4\' \'! a = b\' \'a = b -o 1 -eq 1\'; do if eval "[ $e ]"; then t+=1; else t+=0; fi; done\n{run} a.b=$t',
    "matches": 'v=qwen2_7b\nif [[ $v =~ ^qwen([0-9]+)_(.*)$ ]]; then {run} a.b=${{BASH_REMATCH[1]}} a.c=${{BASH_REMATCH[2]}}; fi\nif [[ ! $v =~ (x|y) ]]; then {run} a.d=1; fi',
    "case": 'case "$1" in\n  a|b) v=1 ;;\n  [0-9]*) v=2;;\n  *) v=3\nesac\ncase x in (x) w=1;; esac\n{run} a.b=$v a.c=$w',
    "functions": 'f() {{\n  local x=$1 y\n  y="$2 z"\n  {run} a.b=$x "a.c=$y" a.n=$#\n  x2=$x\n}}\nfunction g {{ f "$@" last; return 3; }}\nx=out\ng 1 "2 3"\n{run} a.d=$x a.e=$x2 a.f=$?',
    "loops": 'for i in 1 2 "3 4"; do {run} a.b=$i "a.c=$i"; done\nn=0\nwhile [ $n -lt 3 ]; do n=$((n+1)); [ $n = 2 ] && continue; {run} a.n=$n; done\nfor ((i=0;i<2;i++)); do {run} a.i=$i; done\nfor x; do {run} a.x=$x; done\nuntil [ $n -eq 0 ]; do ((n--)); break; done\n{run} a.n=$n',
    "arguments by name": 'while [[ $# -gt 0 ]]; do case $1 in --lr) LR=$2; shift 2;; --*) shift;; *) break;; esac; done\n{run} a.lr=${{LR:-none}} "$@"',
    "documents": "read -r -d '' T <<'EOF'\na $x\nEOF\nx=1\nT2=$(cat <<EOF\nb \"$x\" 'y' $((1+1))\nEOF\n)\ncat > /dev/null <<-END\n\tpython3 -m nothing a.b=1\n\tEND\n{run} \"a.b=$T\" \"a.c=$T2\"",
    "here strings": 'IFS=\':\' read -r p q r <<< "one:two:three:four"\nread -ra W <<< "x y z"\n{run} a.b=$p a.c=$q a.d=$r a.e=${{W[1]}} a.n=${{#W[@]}}',
    "eval": 'C="{run} a.b=1 a.c=\'x y\'"\neval "$C"\neval $C a.d=2\n$C\n"${{Z[@]}}" {run} a.e=1',
    "commands in arrays": 'cmd=(python3 -m verl.trainer.main_ppo)\ncmd+=("a.b=x y")\n"${{cmd[@]}}" a.c=1',
    "environment": 'X=1 {run} a.b=${{X:-unset}}\nexport Y=2 Z\nHYDRA_FULL_ERROR=1 CUDA=0 {run} a.c=$Y\nenv A=1 {run} a.d=1\nnohup {run} a.e=1 > /dev/null 2>&1 &\nwait',
    "pipes and lists": 'set -xeuo pipefail\ntrue && {run} a.b=1 2>&1 | tee /dev/null\nfalse || {run} a.c=1; ( x=5; {run} a.d=$x ); {{ {run} a.e=1; }} >/dev/null\n! false && {run} a.f=${{x:-no}}',
    "braces": '{run} a.b={{x,y}} a{{1..3}}.c=1 a.d={{num:4}} a.e="{{a,b}}" +a.f={{a:1,b:2}} a.g=${{x:-{{}}}}',
    "words from text": 'O="a.b=1   a.c=2\n a.d=3"\n{run} $O "$O" x$O\nIFS=,\nP=1,2\n{run} $P',
    "printed": '{run} a.b=$(echo x  y) "a.c=$(echo "x  y")" a.d=$(printf "%s-%s" a b) a.e=$(f() {{ echo in; }}; f) a.f=`echo \\`echo deep\\``',
    "changed in a subshell": 'x=1; y=$(x=2; echo $x); (x=3); {run} a.b=$x a.c=$y',
    "indirect": 'name=val; val=7; A=(p q)\n{run} a.b=${{!name}} a.c=${{!A[*]}}',
    "appended": 's=a; s+=b; s+=" c"; n=1; n+=2\n{run} "a.b=$s" a.c=$n',
    "unset": 'x=1; unset x; {run} a.b=${{x:-gone}}; f() {{ :; }}; unset -f f',
    "exit": '{run} a.b=1\nif true; then exit 3; fi\n{run} a.c=1',
    "another script": 'cat > other.sh <<"EOF"\n{run} a.b=$1 a.c=${{X:-none}} a.d=${{Y:-none}}\nZ=5\nEOF\n',
    "torchrun": 'torchrun --standalone --nnodes=1 --nproc_per_node 8 -m verl.trainer.fsdp_sft_trainer a.b=1\nray job submit --address=http://x --no-wait -- python3 -m recipe.dapo.main_dapo a.c=\'["a"]\'',
    "bash -c": "x=2; bash -c 'x=3; {run} a.b=$x'\nexport x; sh -c \"{run} a.c=$x\"",
    "carriage returns and no last line": 'x=1\n{run} a.b=$x',
}  # fmt: skip


@needs_bash
@pytest.mark.parametrize("name", CASES)
def test_read_as_bash_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    for variable in ("x", "y", "z", "a", "b", "c", "n", "X", "Y", "Z", "B", "A", "LR"):
        monkeypatch.delenv(variable, raising=False)
    script = tmp_path / "run.sh"
    script.write_text(CASES[name].format(run=RUN))
    for arguments in ([], ["5", "--lr", "a.q=1 2"]):
        found, truth = read(script, arguments), passed_by_bash(script, arguments)
        if "&" in CASES[name].split("wait")[0] and "nohup" in CASES[name]:
            found, truth = sorted(found), sorted(truth)
        assert [[as_unset(word) for word in words] for words in found] == truth


def as_unset(word: str) -> str:
    """A variable that nobody sets is a mark here, and empty in bash."""
    return MARK.sub("", word)


@given(st.lists(st.sampled_from(PIECES := [*" \n;&|()<>{}[]\"'`$\\#=!*", "if ", "then ", "fi", "for ", "do ", "done", "case ", "in ", "esac", "a.b=1", "x=", "$(", "${x", "((", "))", "[[ ", "]]", "<<E\n", "E\n", "$x", "${x:-", "f() {", "python3 ", "eval ", "shift"]), max_size=25))  # fmt: skip
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_to_its_end(tmp_path: Path, pieces: list[str]) -> None:
    script = tmp_path / "any.sh"
    script.write_text("".join(pieces))
    try:
        read_sources(script)
    except UserError as error:
        assert "end" in str(error)


def one(tmp_path: Path, text: str, arguments: tuple[str, ...] = ()) -> list[list[str]]:
    script = tmp_path / "run.sh"
    script.write_text(text)
    return [[MARK.sub(r"<\1>", word) for word in source.words] for source in read_sources(script, arguments)]


def test_what_only_a_machine_knows_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODES", raising=False)
    text = f'x=$(date +%s)\n{RUN} a.b=r-$x a.c=$NODES a.d=$((NODES * 2)) a.e=$RANDOM "a.f=$(nvidia-smi | wc -l)"\n'
    assert one(tmp_path, text) == [
        ["a.b=r-<COMMAND>", "a.c=<NODES>", "a.d=<NUMBER>", "a.e=<RANDOM>", "a.f=<COMMAND>"]
    ]


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
