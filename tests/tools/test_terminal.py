"""The terminal tools, through the YAML that ships with them and the tool session of a trajectory."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.containers import ContainerSpec
from agentrl.core.errors import UserError
from agentrl.tools import ToolSession, load_tools
from agentrl.trajectory.trajectory import Outcome
from tests.tasks.local_provider import LocalContainer, LocalProvider

pytestmark = pytest.mark.integration

EDITOR = "str_replace_based_edit_tool"
TEXT = "def f():\n    return 1\n\nf()\n"


@pytest.fixture
async def container() -> AsyncIterator[LocalContainer]:
    container = LocalContainer(LocalProvider(), ContainerSpec())
    await container.start()
    yield container
    await container.stop()


def opened(container: Any, yaml: str = "tools/terminal.yaml") -> ToolSession:
    tools = load_tools(yaml, None, max_response=2000, unit="characters", side="middle")
    return tools.open("trajectory", {}, SimpleNamespace(container=container))


@pytest.fixture
async def session(container: LocalContainer) -> AsyncIterator[ToolSession]:
    session = opened(container)
    await session.start()
    yield session
    await session.call("bash", {"restart": True})
    await session.release()


async def test_bash_tells_how_a_command_ended(session: ToolSession) -> None:
    async def said(**arguments: Any) -> str:
        return (await session.call("bash", arguments)).text

    assert await said(command="cd /usr; export A=1") == "(no output)"
    assert await said(command="pwd; echo $A; sh -c 'exit 3'") == "/usr\n1\n[exit code 3]"
    late = await session.call("bash", {"command": "echo begun; sleep 30", "timeout": 0.2})
    assert late.text.startswith("begun\n[interrupted after 0.2 seconds. There is no keyboard")
    assert (late.outcome, late.metrics) == (Outcome.OK, {"exit_code": 130, "timed_out": 1.0})
    assert await said(command="exit 4") == "[the shell ended with exit code 4]"
    replaced = await said(command="pwd; exec true")
    assert replaced.startswith("/usr\n[the shell ended with exit code 0]\n[a new shell was started")
    assert await said(restart=True) == "The shell was restarted."
    assert await said(command="  ") == "Error: there is no command."


async def test_each_trajectory_has_a_shell(container: LocalContainer) -> None:
    first, second = opened(container), opened(container)
    await first.call("bash", {"command": "cd /usr; A=1"})
    assert (await second.call("bash", {"command": "pwd; echo -$A-"})).text == f"{container.folder}\n--"
    for session in (first, second):
        await session.call("bash", {"restart": True})
        await session.release()


@pytest.fixture
def hurried(tmp_path: Path) -> str:
    """The ready-made files with other settings."""
    text = Path("tools/terminal.yaml").read_text()
    for old, new in (("t: 60\n", "t: 0.3\n"), ("t: 600\n", "t: 0.5\n"), ("t: 16000\n", "t: 10\n")):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "terminal.yaml").write_text(text)
    shutil.copy("tools/terminal.py", tmp_path)
    return str(tmp_path / "terminal.yaml")


async def test_settings_of_the_yaml(container: LocalContainer, hurried: str) -> None:
    session = opened(container, hurried)
    text = (await session.call("bash", {"command": "seq 100"})).text
    assert (text[:10], text[-10:]) == ("1\n2\n3\n[...", " ...]\n\n100")
    assert "interrupted after 0.3" in (await session.call("bash", {"command": "sleep 30"})).text
    assert "interrupted after 0.5" in (await session.call("bash", {"command": "sleep 30", "timeout": 30})).text
    await session.call("bash", {"restart": True})
    await session.release()


async def test_the_editor_edits(session: ToolSession, container: LocalContainer) -> None:
    async def said(command: str, path: str = "sub/f.py", **more: Any) -> str:
        return (await session.call(EDITOR, {"command": command, "path": path, **more})).text

    file = container.folder / "sub/f.py"
    assert await said("create", file_text=TEXT) == "sub/f.py was written."
    assert await said("view", ".") == ".:\n.\n./sub\n./sub/f.py"
    assert await said("view") == "     1\tdef f():\n     2\t    return 1\n     3\t\n     4\tf()"
    assert await said("view", view_range=[3, -1]) == "     3\t\n     4\tf()"
    assert (await said("str_replace", old_str="return 1", new_str="return 2\n    # two")).endswith("     5\tf()")
    assert file.read_text() == "def f():\n    return 2\n    # two\n\nf()\n"
    await said("insert", insert_line=5, insert_text="print(3)")
    await said("insert", insert_line=0, insert_text="# first\n")
    await said("str_replace", old_str="    # two\n")
    assert file.read_text() == "# first\ndef f():\n    return 2\n\nf()\nprint(3)\n"


async def test_what_is_not_edited_stays_as_it_is(session: ToolSession, container: LocalContainer) -> None:
    content = b"one\r\n\xff two\x85three\r\nfour"
    file = container.folder / "odd file's"
    file.write_bytes(content * 20_000)
    edit = {"command": "insert", "path": "odd file's", "insert_line": 1, "insert_text": "here\r"}
    assert (await session.call(EDITOR, edit)).outcome is Outcome.OK
    assert file.read_bytes() == (content * 20_000).replace(b"\n", b"\nhere\r\n", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": "view", "path": "none"}, "Error: there is no file or folder none."),
        ({"command": "view", "path": "/dev/null"}, "Error: /dev/null is neither a file nor a folder."),
        ({"command": "view", "path": "f.py", "view_range": [9, 10]}, "view_range is [9, 10], and f.py has 4 lines"),
        ({"command": "view", "path": "/bin/sh"}, "bytes, which is too much|is no text file"),
        ({"command": "create", "path": "f.py"}, "create needs the parameter 'file_text'"),
        ({"command": "create", "path": "/proc/none/f", "file_text": ""}, "Error: /proc/none/f was not written."),
        ({"command": "str_replace", "path": "f.py", "old_str": "f()"}, "2 times, in lines 1, 4: add lines around it"),
        ({"command": "str_replace", "path": "f.py", "old_str": "g()"}, "exactly once, and is not in it."),
        ({"command": "str_replace", "path": ".", "old_str": "g()"}, "Error: . is a folder."),
        ({"command": "insert", "path": "f.py", "insert_line": 5, "insert_text": ""}, "5, and f.py has 4 lines"),
        ({"command": "undo_edit", "path": "f.py"}, "undo_edit"),
    ],
)
async def test_the_model_reads_its_mistake(
    session: ToolSession, container: LocalContainer, arguments: dict[str, Any], message: str
) -> None:
    (container.folder / "f.py").write_text(TEXT)
    result = await session.call(EDITOR, arguments)
    assert result.outcome is Outcome.MODEL_ERROR
    assert any(words in result.text for words in message.split("|"))
    assert (container.folder / "f.py").read_text() == TEXT


async def test_a_row_without_a_container() -> None:
    session = opened(None)
    with pytest.raises(UserError, match="tool 'bash' needs a container and this row has none: give the row extra_info"):
        await session.call("bash", {"command": "true"})
    await session.release()
