"""Shell scripts: the programs that they start, with the settings that those get. No shell runs."""

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agentrl.config.presets import shipped
from agentrl.config.sources.given import Given, Source
from agentrl.config.sources.launches import Launch, find_launch
from agentrl.config.sources.shell import Command, Ended, Shell
from agentrl.config.sources.shell.builtins import find_script
from agentrl.config.sources.shell.marks import MARK, unsure
from agentrl.config.sources.shell.state import Field
from agentrl.config.sources.yaml_files import YamlFiles
from agentrl.core.errors import UserError

SETTING = re.compile(r"[+~]{0,2}[A-Za-z_][\w-]*([./@][\w./@-]+)+=.*", re.DOTALL)
"""A setting among the words of any command: its name has a dot or a slash, a shell variable's has none."""
DOTTED = re.compile(r"[+~]{0,2}[A-Za-z_]\w*(\.\w+)+=.*", re.DOTALL)
"""A setting among the words of a command that starts no Python: nothing that `sed` gets looks like it."""
HYDRA = re.compile(r"(verl\.(trainer|experimental)|recipe\.(\w+\.)*main_\w+$|recipe\.(\w+\.)*\w+_main|agentrl)\b")
"""Programs whose every word is a setting or an option."""
EMPTY = "an empty word is passed here: remove the blank behind a \\, or the quotes around a variable that is empty"
OPTIONS = {"--config-name": "name", "-cn": "name", "--config-path": "folder", "-cp": "folder", "--config-dir": "folder"}


def read_script(file: Path, arguments: Sequence[str] = ()) -> list[Source]:
    """Each program that a script starts, in order. Raises UserError when it does not end, or is no text.

    A script that starts nothing without arguments is read once more as if it had some, which nobody knows.
    """
    programs = _Programs(file)
    found = programs.read(arguments)
    if not found and not arguments:
        found = _Programs(file).read(None)
        for source in found:
            source.mistakes += [(line, text) for line, text in programs.missing if not text[0].isdigit()]
    return found


class _Programs:
    """Collects what a script starts."""

    def __init__(self, file: Path) -> None:
        self.file, self.found = file, list[Source]()
        self.missing: list[tuple[int, str]] = []

    def read(self, arguments: Sequence[str] | None) -> list[Source]:
        shell = Shell(self.file, dict(os.environ), arguments, self._started)
        shell.run()
        self.missing = shell.missing
        return self.found

    def _started(self, shell: Shell, command: Command) -> Ended:
        words = command.words
        if words[0].text in ("bash", "sh") and (inner := self._inner_script(shell, words[1:])):
            return inner
        launch = find_launch(words)
        if launch is not None and launch.code:
            return _imports(launch.code)
        settings = [word for word in words if SETTING.fullmatch(word.text)]
        if launch is None:
            self._without_program(command)
        elif launch is not None and (settings or HYDRA.match(launch.program) or "model_merger" in launch.program):
            self.found.append(_read_program(shell, command, launch))
        return Ended()

    def _inner_script(self, shell: Shell, words: Sequence[Field]) -> Ended | None:
        """`bash -c text`, `bash file arguments`."""
        words = [word for word in words if not re.fullmatch(r"-[a-bd-z]+", word.text)]
        if len(words) > 1 and re.fullmatch(r"-[a-z]*c", words[0].text):
            shell.inner(words[1].text, words[1].line, words[3:])
            return Ended()
        script = find_script(shell, words[0].text) if words else None
        if script is None:
            return None
        shell.script(script, words[1:], same=False)
        return Ended()

    def _without_program(self, command: Command) -> None:
        """Settings that stand where a program should: those of a line that a comment cut off, most often."""
        settings = [word for word in command.words if DOTTED.fullmatch(word.text)]
        if settings and DOTTED.fullmatch(command.words[0].text) and self.found:
            self.found[-1].lost += [(command.line, MARK.sub(r"$\1", word.text)) for word in command.words]
        if not settings or DOTTED.fullmatch(command.words[0].text):
            return
        source = Source(program="", line=command.line, certain=command.certain)
        for word in settings:
            _add(source, command.file, word)
        self.found.append(source)


def _imports(code: str) -> Ended:
    """How `python -c 'import name'` ends is known; what other code prints is not."""
    found = re.fullmatch(r"\s*import (\w+)\s*", code)
    if found is None:
        return Ended()
    return Ended("", "ok" if importlib.util.find_spec(found[1]) else "failed")


def _read_program(shell: Shell, command: Command, launch: Launch) -> Source:
    words = tuple(word.text for word in launch.arguments)
    unset = frozenset(shell.expander.unset)
    source = Source(program=launch.program, line=command.line, launcher=launch.launcher, words=words, unset=unset)
    source.certain = command.certain
    options: dict[str, Field] = {}
    rest = list(_without_options(launch.arguments, options))
    _read_chosen(source, shell, launch, options)
    for key, value in launch.processes:
        if value.text.isdigit():
            source.settings.append(Given(command.file, value.line, f"trainer.{key}", int(value.text)))
    for word in rest:
        if SETTING.fullmatch(word.text) or (HYDRA.match(launch.program) and not MARK.fullmatch(word.text)):
            _add(source, command.file, word)
    return source


def _without_options(words: Sequence[Field], options: dict[str, Field]) -> Iterator[Field]:
    """The words that are no options; those that choose a file go to `options`."""
    left = iter(words)
    for word in left:
        option, sign, value = word.text.partition("=")
        if option in OPTIONS:
            chosen = Field(value, word.line) if sign else next(left, None)
            options |= {OPTIONS[option]: chosen} if chosen else {}
        elif not word.text.startswith("-"):
            yield word


def _read_chosen(source: Source, shell: Shell, launch: Launch, options: Mapping[str, Field]) -> None:
    """The YAML that is chosen, where it can be found: its settings come first."""
    if "name" not in options:
        return
    name, folder = options["name"], options["folder"].text if "folder" in options else ""
    around = [Path(shell.state.folder), *shell.file.resolve().parents]
    beside = Path(*launch.program.split(".")[:-1])  # where Hydra looks
    places = [place / folder for place in (*around, shell.file.parent)] if folder else []
    places += [place / beside / (folder or "config") for place in around]
    for place in places:
        if (file := place / f"{name.text.removesuffix('.yaml')}.yaml").is_file():
            YamlFiles(source, file.parent).read(file, "")
            return
    if unsure(name.text) or unsure(folder) or name.text.removesuffix(".yaml") in shipped()[""]:
        source.includes.append((name.line, f"{name.text}.yaml, which --config-name names"))
        return
    source.mistakes.append(
        (name.line, f"--config-name={name.text}: no such file in {folder or 'config'}, beside the program or here")
    )


def _add(source: Source, file: Path, word: Field) -> None:
    """What a word sets."""
    from agentrl.config.overrides import parse_override

    if not word.text.strip():
        source.mistakes.append((word.line, EMPTY))
        return
    try:
        override = parse_override(MARK.sub(r"${oc.env:\1}", word.text))
    except UserError as error:
        source.mistakes.append((word.line, str(error)))
        return
    name = override.get_key_element().lstrip("+~")
    if "@" in name or ("/" in name and not name.startswith("hydra/")):
        source.includes.append((word.line, MARK.sub(r"$\1", word.text)))  # the choice of a file
    elif not override.is_delete():
        source.settings += _flat(Given(file, word.line, name, override.value()))


def _flat(given: Given) -> Iterator[Given]:
    """`a={b: 1}` as `a.b=1`."""
    if not isinstance(given.value, Mapping) or not given.value:
        yield given
        return
    for name, value in given.value.items():
        yield from _flat(Given(given.file, given.line, f"{given.path}.{name}", value))
