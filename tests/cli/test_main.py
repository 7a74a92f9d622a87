"""`agentrl`: help at once, mistakes in one line, exit codes."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from agentrl import __version__
from agentrl.cli import main as cli
from agentrl.core.errors import UserError

pytestmark = pytest.mark.integration

SLOW_IMPORTS = ("torch", "transformers", "hydra", "omegaconf", "peft", "pyarrow")


def run(*args: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "agentrl", *args], capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.prevents("start-up takes minutes, or hangs")
@pytest.mark.parametrize("args", [["--help"], ["--version"], ["nonsense"]])
def test_no_heavy_import_before_a_command_runs(args: list[str]) -> None:
    script = (
        "import sys; from agentrl.cli.main import main\n"
        f"main({args!r})\n"
        f"sys.exit(', '.join(name for name in {SLOW_IMPORTS} if name in sys.modules) or None)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command_and_first_steps() -> None:
    code, out, _ = run("--help")
    assert code == 0
    for name, command in cli.commands().items():
        assert name in out
        assert command.help in out
    assert "agentrl model smollm2" in out
    assert run()[1] == out, "no arguments ask for the same"


def test_version() -> None:
    assert run("--version")[1].strip() == f"agentrl {__version__}"


@pytest.mark.parametrize("name", list(cli.commands()))
def test_every_command_is_there_and_has_help(name: str) -> None:
    code, out, err = run(name, "--help")
    assert code == 0, err
    assert f"agentrl {name}" in out


def test_first_steps_are_commands_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    for _, line in cli.FIRST_STEPS:
        _, name, *rest = line.split()
        module = cli.commands()[name].load()
        parser = cli.Parser(prog=name)
        module.configure(parser)
        if "--help" not in rest:
            cli.parse(parser, rest)


def test_an_unknown_command_lists_those_there_are() -> None:
    code, out, err = run("trian")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "trian" in err
    assert "train" in err


def test_an_unknown_option_is_one_line() -> None:
    code, _, err = run("train", "--confg-name", "x")
    assert code == 2
    assert err.count("\n") == 1
    assert "--confg-name" in err


class Failing:
    """A command that ends as told."""

    __doc__ = "fails"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def configure(self, parser: object) -> None:
        """No arguments."""

    def run(self, args: SimpleNamespace) -> int:
        raise self.error


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    def install(error: BaseException) -> None:
        monkeypatch.setattr(cli.Command, "load", lambda _: Failing(error))

    return install


def test_a_users_mistake_is_one_line_and_code_2(command, capsys: pytest.CaptureFixture[str]) -> None:
    command(UserError("x.yaml: no [tools]\nadd some"))
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err == "error: x.yaml: no [tools] add some\n"

    failed = UserError("the server did not start")
    failed.details = ("loading", "out of memory")
    command(failed)
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err == "  loading\n  out of memory\nerror: the server did not start\n"


def test_traceback_shows_where(command) -> None:
    command(UserError("here"))
    with pytest.raises(UserError):
        cli.main(["train", "--traceback"])


def test_interruption_is_code_130(command, capsys: pytest.CaptureFixture[str]) -> None:
    command(KeyboardInterrupt())
    assert cli.main(["train"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_bugs_show_themselves(command) -> None:
    command(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["train"])


def test_overrides_may_stand_anywhere() -> None:
    from agentrl.cli.common import add_config_arguments

    parser = cli.Parser(prog="x")
    add_config_arguments(parser)
    args = cli.parse(parser, ["a=1", "--cfg", "job", "b=2", "~c", "--config-name", "n", "+d=3"])
    assert args.overrides == ["a=1", "b=2", "~c", "+d=3"]
    assert (args.cfg, args.config_name) == ("job", "n")
