"""A terminal in the container of a row: `bash` with state, and an editor of its files.

Shows: tools that use `agent_data.container`. Names and parameters are those that models know. Nothing is ended at
release: what a task left running is there when it is verified; the container ends with the trajectory.
"""

from typing import Any

from agentrl.containers.contract import Container
from agentrl.containers.shell import FLOOD_BYTES, Shell, ShellAnswer
from agentrl.containers.text_files import look, write
from agentrl.core.errors import UserError
from agentrl.tools import BaseTool, ModelError

NOTHING = "(no output)"
AROUND = 4
"""Lines shown before and after an edit."""


class TerminalTool(BaseTool):
    """Base of both tools: the container of the trajectory. config: `user`, who commands run as."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        # No time limit on the call: each command has its own.
        super().__init__({"timeout": None, **config}, tool_schema)
        self.user: str | None = config.get("user")

    def container(self, agent_data: Any) -> Container:
        """The row's. Raises UserError for a row without one."""
        found: Container | None = getattr(agent_data, "container", None)
        if found is None:
            raise UserError(
                f"tool {self.name!r} needs a container and this row has none: give the row extra_info.container={{}} "
                "(rollout.containers.provider=embedded needs no Docker), or leave the tool out of its tool_selection"
            )
        return found


class Bash(TerminalTool):
    """Runs commands in a shell that keeps its state. One shell a trajectory.

    config: `default_timeout` (seconds of a command, 60), `max_timeout` (the most that the model may ask for, 600),
    `max_output` (bytes of output that the model reads, half of them from its end, 16000).
    """

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.timeout = float(config.get("default_timeout", 60))
        self.longest = float(config.get("max_timeout", 600))
        self.output = int(config.get("max_output", 16_000))
        self.shells: dict[str, Shell] = {}

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """The output of the command, and a note in brackets where it did not end with exit code 0."""
        shell = self.shells.get(instance_id)
        if shell is None:
            container = self.container(kwargs.get("agent_data"))
            shell = self.shells[instance_id] = Shell(container, user=self.user, output=self.output)
        command = parameters.get("command") or ""
        if parameters.get("restart"):
            await shell.restart()
            if not command:
                return "The shell was restarted."
        if not command.strip():
            raise ModelError("Error: there is no command.")
        timeout = min(float(parameters.get("timeout") or self.timeout), self.longest)
        answer = await shell.run(command, timeout)
        return describe(answer, timeout), 0.0, {"exit_code": answer.code, "timed_out": float(answer.end == "timeout")}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the shell; it ends with its container."""
        self.shells.pop(instance_id, None)


class Editor(TerminalTool):
    """Views and edits text files: the commands view, create, str_replace and insert."""

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """The lines that were asked for, or the lines around an edit."""
        container, path = self.container(kwargs.get("agent_data")), parameters["path"]
        if parameters["command"] == "create":
            await write(container, path, _needed(parameters, "file_text"), self.user)
            return f"{path} was written."
        found = await look(container, path, self.user)
        if parameters["command"] == "view":
            return view(path, found, parameters.get("view_range"))
        if isinstance(found, list):
            raise ModelError(f"Error: {path} is a folder.")
        edit = replaced if parameters["command"] == "str_replace" else inserted
        text, first, last = edit(path, found, parameters)
        await write(container, path, text, self.user)
        return f"{path} was edited:\n{numbered(text, first - AROUND, last + AROUND)}"


def view(path: str, found: str | list[str], lines: list[int] | None) -> str:
    """A folder's entries, or a file's lines with their numbers. `lines`: first and last, -1 for the end."""
    if isinstance(found, list):
        return "\n".join([f"{path}:", *found])
    count = len(_lines(found))
    first, last = lines or (1, -1)
    if not (1 <= first <= max(count, 1) and (last == -1 or last >= first)):
        raise ModelError(f"Error: view_range is [{first}, {last}], and {path} has {count} lines.")
    return numbered(found, first, count if last == -1 else last) or f"{path} is empty."


def replaced(path: str, text: str, parameters: dict[str, Any]) -> tuple[str, int, int]:
    """The text after str_replace, with the first and the last line of the edit."""
    old, new = _needed(parameters, "old_str"), parameters.get("new_str") or ""
    found = text.count(old) if old else 0
    if found != 1:
        lines = ", ".join(str(text[:at].count("\n") + 1) for at in _places(text, old))
        where = f"stands in it {found} times, in lines {lines}: add lines around it" if found else "is not in it"
        raise ModelError(f"Error: {path} was not edited. old_str must be in it exactly once, and {where}.")
    before, _, after = text.partition(old)
    first = before.count("\n") + 1
    return before + new + after, first, first + new.count("\n")


def inserted(path: str, text: str, parameters: dict[str, Any]) -> tuple[str, int, int]:
    """The text after insert, with the first and the last line of the edit."""
    at = _needed(parameters, "insert_line")
    new = _needed(parameters, "new_str" if "new_str" in parameters else "insert_text")  # its name in other versions
    lines = _lines(text)
    if not 0 <= at <= len(lines):
        raise ModelError(f"Error: insert_line is {at}, and {path} has {len(lines)} lines.")
    added = _lines(new)
    end = "\n" if text.endswith("\n") or not text else ""
    return "\n".join([*lines[:at], *added, *lines[at:]]) + end, at + 1, at + len(added)


def numbered(text: str, first: int, last: int) -> str:
    """Lines with their numbers, from `first` to `last`."""
    lines = _lines(text.encode(errors="surrogateescape").decode(errors="replace"))
    shown = enumerate(lines[max(first, 1) - 1 : last], max(first, 1))
    return "\n".join(f"{number:6}\t{line}" for number, line in shown)


def _lines(text: str) -> list[str]:
    """The lines as editors count them; splitlines would break at rarer characters too."""
    return text.removesuffix("\n").split("\n") if text else []


def _places(text: str, part: str) -> list[int]:
    places, at = [], text.find(part) if part else -1
    while at >= 0:
        places.append(at)
        at = text.find(part, at + len(part))
    return places[:20]


def _needed(parameters: dict[str, Any], name: str) -> Any:
    if parameters.get(name) is None:
        raise ModelError(f"Error: {parameters['command']} needs the parameter {name!r}.")
    return parameters[name]


def describe(answer: ShellAnswer, timeout: float) -> str:
    """The text for the model."""
    new = "a new shell was started: folder and variables are as at the beginning" if answer.lost else ""
    notes = [f"[{note}]" for note in (_ending(answer, timeout), new) if note]
    return "\n".join(filter(None, [answer.output.rstrip("\n"), *notes])) or NOTHING


def _ending(answer: ShellAnswer, timeout: float) -> str:
    match answer.end:
        case "timeout":
            return (
                f"interrupted after {timeout:g} seconds. There is no keyboard: input comes from a pipe or a file. "
                "Start servers in the background: command > log 2>&1 &"
            )
        case "flood":
            return f"interrupted: more than {FLOOD_BYTES >> 20} MiB of output"
        case "memory":
            return "killed: the container is over its memory limit"
        case "shell":
            return f"the shell ended with exit code {answer.code}"
    return f"exit code {answer.code}" if answer.code else ""
