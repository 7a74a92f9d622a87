"""Shell scripts: the settings of the programs that they start, and their lines."""

from pathlib import Path

import pytest

from agentrl.core.errors import UserError
from agentrl_verl.reading import bash, scripts
from agentrl_verl.reading.launches import MARK
from agentrl_verl.reading.scripts import read_sources

pytestmark = pytest.mark.integration

RUN = "python3 -m verl.trainer.main_ppo"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NODES", raising=False)


def one(text: str, arguments: tuple[str, ...] = ()) -> list[list[str]]:
    Path("run.sh").write_text(text)
    return [[MARK.sub(r"<\1>", word) for word in source.words] for source in read_sources(Path("run.sh"), arguments)]


@pytest.mark.prevents("a check of a launch script reads other settings than the shell passes")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"A=(a.b=1 # one\n 'a.c=2 3')\nA+=(a.e=5)\n{RUN} \"${{A[@]}}\" a.n=${{#A[@]}}",
         [["a.b=1", "a.c=2 3", "a.e=5", "a.n=3"]]),
        (f"f() {{ local x=$1; {RUN} a.b=$((x * 2)) ${{2:+a.c=$2}}; }}\nf 2; f 3 4", [["a.b=4"], ["a.b=6", "a.c=4"]]),
        (f"for n in 1 2; do nohup {RUN} a.n=$n > log 2>&1 & wait; done", [["a.n=1"], ["a.n=2"]]),
        (f"ray job submit --no-wait -- {RUN} data.x=\"['a','b']\"", [["data.x=['a','b']"]]),
        (f"set -e\ncd /nowhere\nsource /opt/env.sh\nmkdir -p /models/x\nF=/a/b.tar; {RUN} a.b=${{F%.*}}",
         [["a.b=/a/b"]]),
        (f'x=$(date | wc -l)\n{RUN} a.b=$x a.c=$NODES "a.d=$(nvidia-smi)" a.e=${{GPUS:-8}}',
         [["a.b=1", "a.c=<NODES>", "a.d=<COMMAND>", "a.e=8"]]),
        (f"python3 -c 'import no_such_module' || ENGINE=vllm\n{RUN} a.b=$ENGINE", [["a.b=vllm"]]),
        (f"exec uv run {RUN} a.b=$HOME/x", [[f"a.b={Path.home()}/x"]]),
    ],
)  # fmt: skip
def test_words_are_those_that_bash_passes(text: str, words: list[list[str]]) -> None:
    assert one(text) == words


def test_a_script_that_asks_for_arguments_is_read_without() -> None:
    text = (
        'if [ "$#" -lt 2 ]; then echo "Usage: run.sh <gpus> <folder>"; exit 1; fi\ngpus=$1; out=$2; shift 2\n'
        f'{RUN} trainer.n_gpus_per_node=$gpus trainer.default_local_dir="$out/${{3:-x}}" "$@"\n'
    )
    (words,) = one(text)
    assert words[:2] == ["trainer.n_gpus_per_node=<ARG_1>", "trainer.default_local_dir=<ARG_2>/<ARG_5>"]
    assert [given.path for given in read_sources(Path("run.sh"))[0].settings] == [
        "trainer.n_gpus_per_node",
        "trainer.default_local_dir",
    ]
    (words,) = one(text, ("8", "/out", "a.b=c d"))
    assert words == ["trainer.n_gpus_per_node=8", "trainer.default_local_dir=/out/x", "a.b=c d"]


def test_settings_that_a_comment_cuts_off_are_named() -> None:
    one(f"{RUN} \\\n  a.b=1 \\\n  # a.c=2 \\\n  a.d=3 \\\n  a.e=4\n")
    (source,) = read_sources(Path("run.sh"))
    assert source.words == ("a.b=1",)
    assert source.lost == [(4, "a.d=3"), (5, "a.e=4")]


def test_lines_are_those_of_the_words() -> None:
    one(f'A=(\n  a.b=1\n  "a.c=2"\n)\nf() {{\n  {RUN} \\\n    "${{A[@]}}" \\\n    a.d=$1\n}}\nf 4\n')
    (source,) = read_sources(Path("run.sh"))
    assert [(given.path, given.line) for given in source.settings] == [("a.b", 2), ("a.c", 3), ("a.d", 8)]
    assert source.line == 6


def test_scripts_that_it_names_run_with_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/base.sh").write_text(f'#\n{RUN} a.b=$SIZE "$@"\n')
    (tmp_path / "sub/env.sh").write_text("export SIZE=3\n")
    words = one('here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\n. $here/sub/env.sh\nbash sub/base.sh a.d=$here')
    assert words == [["a.b=3", f"a.d={tmp_path}"]]
    (source,) = read_sources(Path("run.sh"))
    assert (source.settings[0].file.name, source.settings[0].line) == ("base.sh", 2)


def test_a_loop_without_an_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bash, "SECONDS", 1.0)
    with pytest.raises(UserError, match=r"run\.sh does not end"):
        one("while true; do x=1; done\n")


def test_it_reads_and_writes_no_file_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.txt").write_text("hunter2")
    monkeypatch.setenv("A_TOKEN", "hunter2")
    folder = tmp_path
    text = (
        f"touch {folder}/made; rm -rf {folder}/secret.txt; echo x > {folder}/made\n"
        f"{RUN} a.b=$(cat {folder}/secret.txt) a.c=$(env | grep -c hunter2) a.d=$(ls {folder} | wc -l)\n"
    )
    assert one(text) == [["a.b=", "a.c=0", "a.d=0"]]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.sh", "secret.txt"]


def test_a_variable_that_has_to_be_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    one(f"set -xeuo pipefail\nn=$NODES\n{RUN} trainer.nnodes=$n\n")
    (source,) = read_sources(Path("run.sh"))
    assert source.mistakes == [(2, "NODES is not set, and set -u ends the script")]
    monkeypatch.setenv("NODES", "2")
    (source,) = read_sources(Path("run.sh"))
    assert (source.mistakes, source.words) == ([], ("trainer.nnodes=2",))


def test_a_script_that_bash_ends_is_read_as_text() -> None:
    one(f': ${{NODES:?say how many}}\nA=(\n  data.x=1\n)\n{RUN} \\\n  trainer.nnodes=$NODES "${{A[@]}}" "$@" | tee x\n')
    (source,) = read_sources(Path("run.sh"))
    assert not source.certain
    assert source.mistakes == [(1, "NODES: say how many")]
    assert [(given.path, given.value, given.line) for given in source.settings] == [
        ("trainer.nnodes", "${oc.env:NODES}", 6),
        ("data.x", 1, 3),
    ]


def test_without_a_sandbox_the_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "run_bash", lambda *_: None)
    assert one(f'N=2\nif [ -d /x ]; then\n  {RUN} a.b="c d" a.n=$N # a.e=1\nfi\n') == [["a.b=c d", "a.n=<N>"]]
    assert not read_sources(Path("run.sh"))[0].certain


def test_bash_s_error_is_shown() -> None:
    one(f"if true; then\n  {RUN}\ndone\n")
    (source,) = read_sources(Path("run.sh"))
    assert source.mistakes == [(3, "syntax error near unexpected token `done'")]
    with pytest.raises(UserError, match=r"run\.sh:\d: bash ends the script: (syntax error: )?unexpected"):
        one("N=(\n")
    with pytest.raises(UserError, match=r"run\.sh:1: bash ends the script: NODES: say how many"):
        one(": ${NODES:?say how many}\n")
