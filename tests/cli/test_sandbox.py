"""`agentrl sandbox run` and `check`; serve has tests of its own."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration


def sandbox(*words, **options):
    command = [sys.executable, "-m", "agentrl", "sandbox", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "program.py"
    file.write_text("import sys; print(int(input()) * 2); print('e', file=sys.stderr); sys.exit(3)")
    return file


def test_run(program):
    done = sandbox("run", str(program), "--stdin", "21")
    assert (done.returncode, done.stdout) == (3, "42\n")
    assert done.stderr.startswith("e\n")
    assert "isolation: " in done.stderr


def test_run_reads_its_own_input_where_told(program):
    assert sandbox("run", str(program), "--stdin", "-", input="4").stdout == "8\n"


def test_run_says_which_limit_was_hit(tmp_path):
    file = tmp_path / "loop"
    file.write_text("while True: pass")
    done = sandbox("run", str(file), "--language", "python", "--timeout", "0.5")
    assert done.returncode == 124
    assert "limit hit: " in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "missing.py"], "missing.py cannot be read"),
        (["run", "x.unknown"], "say --language NAME"),
        (["run", "PROGRAM", "--language", "klingon"], "language unknown: 'klingon'"),
        (["run", "PROGRAM", "--url", "nonsense"], "write http://HOST:PORT"),
        (["run", "PROGRAM", "--isolation", "magic"], "magic"),
        (["check", "--isolation", "magic"], "magic"),
        (["dance"], "invalid choice"),
        ([], "agentrl sandbox --help"),
    ],
)
def test_mistakes_are_one_line(program, words, message):
    done = sandbox(*[str(program) if word == "PROGRAM" else word for word in words])
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_check():
    done = sandbox("check", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert any(probe["ok"] for probe in report["isolation"])
    assert report["languages"]["python"] == ""
    assert report["memory"].startswith("all memory of a run counts")
