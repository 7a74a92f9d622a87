"""A shell in a container: its state, its time limits, its output; in bash and in sh, in processes of this machine."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrl.containers import ContainerSpec, Done
from agentrl.containers import shell as shells
from agentrl.containers.shell import Shell, ShellAnswer
from agentrl.core.errors import InfraError
from tests.tasks.local_provider import LocalContainer, LocalProvider

pytestmark = pytest.mark.integration


class Local(LocalContainer):
    """Gives commands that are text to one shell."""

    def __init__(self, shell: str) -> None:
        super().__init__(LocalProvider(), ContainerSpec())
        self.shell = shell

    async def exec(self, command: str | Sequence[str], **options: Any) -> Done:
        return await super().exec([self.shell, "-c", command] if isinstance(command, str) else command, **options)


@asynccontextmanager
async def shell_in(name: str, **options: Any) -> AsyncIterator[Shell]:
    container = Local(name)
    await container.start()
    try:
        shell = Shell(container, **{"shells": (name,), **options})
        yield shell
        await shell.restart()
    finally:
        await container.stop()


NO_DASH = pytest.mark.skipif(not shutil.which("dash"), reason="dash is not installed")
KINDS = ["bash", pytest.param("dash", marks=[pytest.mark.slow, NO_DASH])]


@pytest.fixture(params=KINDS)
async def shell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shell]:
    monkeypatch.setattr(shells, "GRACE", 0.3)
    async with shell_in(request.param, output=200) as shell:
        yield shell


async def test_state_stays(shell: Shell) -> None:
    await shell.run("cd /usr; export EXPORTED=1; plain=2; double() { echo $(($1 * 2)); }", 30)
    assert await shell.run("pwd; echo $EXPORTED $plain; double 21; false", 30) == ShellAnswer("/usr\n1 2\n42\n", 1)


@pytest.mark.prevents(
    "a terminal loses its state after `exit` or a timeout, or shows a background job's output as another command's"
)
@pytest.mark.parametrize("end", ["set -e; sh -c 'exit 3'; echo no", "sleep 30"])
async def test_state_outlives_the_end_of_the_shell(shell: Shell, end: str) -> None:
    await shell.run("cd /usr; export EXPORTED='a  b'; plain=\"it's\"", 30)
    answer = await shell.run(f"echo begun; {end}", 0.3 if "sleep" in end else 30)
    assert answer.output.startswith("begun\n")
    assert (answer.end, answer.lost) == ("timeout" if "sleep" in end else "shell", False)
    assert (await shell.run('pwd; echo "$EXPORTED" $plain', 30)).output == "/usr\na  b it's\n"


@pytest.mark.prevents("a command of the model never ends, asks for input, or floods the disk with output")
async def test_ctrl_c_ends_a_whole_list_of_commands(shell: Shell) -> None:
    for command in ("while true; do true; done; echo next", "x=$(sleep 30); echo next"):
        assert await shell.run(command, 0.2) == ShellAnswer("", 130, "timeout")


@pytest.mark.slow
async def test_what_ignores_ctrl_c_is_killed(shell: Shell) -> None:
    assert (await shell.run("sh -c \"trap '' INT; echo mine; sleep 30\"", 0.3)).end == "timeout"
    answer = await shell.run("echo mine; trap '' INT; while true; do true; done", 0.3)
    assert (answer.output, answer.end, answer.lost) == ("mine\n", "timeout", True)
    assert (await shell.run("echo again", 30)).output == "again\n"


async def test_background_jobs_stay_and_keep_their_output(shell: Shell) -> None:
    pid = (await shell.run("(sleep 0.2; echo late; sleep 9) & echo $!", 30)).output.strip()
    assert await shell.run("sleep 0.3; echo mine", 30) == ShellAnswer("mine\n", 0)
    answer = await shell.run("sleep 8 & echo $!; sleep 30", 0.3)
    assert answer.end == "timeout"
    for job in (pid, answer.output.strip()):
        assert (await shell.run(f"kill {job} && echo it was there", 30)).output == "it was there\n"


async def test_there_is_no_keyboard(shell: Shell) -> None:
    assert (await shell.run("cat; read line; echo $?; : </dev/tty", 30)).output.startswith("1\n")


async def test_long_output_keeps_head_and_tail(shell: Shell) -> None:
    output = (await shell.run("seq 1000", 30)).output
    assert output.startswith("1\n2\n")
    assert output.endswith("999\n1000\n")
    assert "bytes left out" in output
    assert len(output) < 300


@pytest.mark.slow
async def test_a_flood_is_stopped() -> None:
    async with shell_in("bash", output=100) as shell:
        await shell.run("cd /usr", 30)
        answer = await shell.run("yes", 60)
        assert (answer.end, answer.lost) == ("flood", False)
        assert (await shell.run("pwd", 30)).output == "/usr\n"


async def test_broken_commands_leave_a_shell(shell: Shell) -> None:
    for broken in ("echo 'open", "fi", "set -C; cd /usr", "set -u; echo $unset_one", "export PATH=; nosuch"):
        await shell.run(broken, 30)
    assert (await shell.run("pwd", 30)).output == "/usr\n"


async def test_a_shell_that_is_replaced_or_killed(shell: Shell) -> None:
    assert await shell.run("exec sh -c 'echo other; exit 5'", 30) == ShellAnswer("other\n", 5, "shell", lost=True)
    assert await shell.run("echo mine; kill -9 $$", 30) == ShellAnswer("mine\n", 137, "shell", lost=True)


async def test_long_and_odd_commands(shell: Shell) -> None:
    assert (await shell.run(f"echo '{'x' * 70_000}' | wc -c", 30)).output.strip() == "70001"
    text = "tab\there 'quote' \"double\" \\back $1 \u00e9 {}"
    assert (await shell.run(f"cat <<'END'\n{text}\n  two\n\nEND", 30)).output == f"{text}\n  two\n\n"


async def test_restart_ends_background_jobs(shell: Shell) -> None:
    pid = (await shell.run("cd /usr; sleep 600 & echo $!", 30)).output.strip()
    await shell.restart()
    ended = f"while grep -qs sleep /proc/{pid}/cmdline; do sleep 0.1; done"  # of a zombie it is empty
    answer = await shell.run(f"pwd; {ended}", 60)
    assert "/usr\n" not in answer.output
    assert answer.end == "exit"


async def test_calls_at_once_wait_for_each_other(shell: Shell) -> None:
    answers = await asyncio.gather(*(shell.run(f"sleep 0.05; echo {i}", 30) for i in range(4)))
    assert [answer.output for answer in answers] == ["0\n", "1\n", "2\n", "3\n"]


async def test_a_container_without_what_it_needs() -> None:
    async with shell_in("bash", shells=("no-such-shell",)) as shell:
        with pytest.raises(InfraError, match="no shell started in container container-"):
            await shell.run("true", 30)
