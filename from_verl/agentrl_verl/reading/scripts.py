"""Files that someone brings along: YAML, and shell scripts with the programs that they start.

Each setting has its line; nothing is translated or judged here.
"""

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.config.presets import shipped, why_not
from agentrl.config.tree import ADDED, CHANGED
from agentrl.core.errors import UserError
from agentrl_verl.programs import OWN_FOLDER
from agentrl_verl.reading.bash import SECONDS, BashRun, named_files, run_bash
from agentrl_verl.reading.launches import MARK, Launch, Word, find_launch, mark, unsure
from agentrl_verl.reading.program_settings import Given, Source
from agentrl_verl.reading.script_text import BY_BASH, NOUNSET, ScriptText, needed
from agentrl_verl.reading.yaml_files import YamlFiles

SETTING = re.compile(r"[+~]{0,2}[A-Za-z_][\w-]*([./@][\w./@-]+)+=.*", re.DOTALL)
"""A setting among the words of any command: its name has a dot or a slash, a shell variable's has none."""
DOTTED = re.compile(r"[+~]{0,2}[A-Za-z_]\w*(\.\w+)+=.*", re.DOTALL)
"""A setting among the words of a command that starts no Python: nothing that `sed` gets looks like it."""
HYDRA = re.compile(r"(verl\.(trainer|experimental)|recipe\.(\w+\.)*main_\w+$|recipe\.(\w+\.)*\w+_main|agentrl)\b")
"""Programs whose every word is a setting or an option."""
EMPTY = "an empty word is passed here: remove the blank behind a \\, or the quotes around a variable that is empty"
OPTIONS = {"--config-name": "name", "-cn": "name", "--config-path": "folder", "-cp": "folder", "--config-dir": "folder"}
UNBOUND = "unbound variable"
"""bash's word for a variable that is not set."""
ARGUMENTS = 9
"""Arguments that a script gets where nobody knows them."""
IMPORTED = re.compile(r"-c\s+['\"]\s*import (\w+)")


def read_sources(file: Path, arguments: Sequence[str] = ()) -> list[Source]:
    """A YAML file, or each program that a shell script starts with `arguments`. Raises UserError when it is neither."""
    if file.suffix not in (".yaml", ".yml"):
        return read_script(file, arguments)
    source = Source()
    YamlFiles(source, file.parent).read(file, "")
    return [source]


def read_source(file: Path) -> Source:
    """The first of them; an empty one for a script that starts nothing."""
    return next(iter(read_sources(file)), Source())


def read_script(file: Path, arguments: Sequence[str] = ()) -> list[Source]:
    """Each program that a script starts, in order. Raises UserError when it does not end, or ends at an error first.

    A script that starts nothing without arguments is run once more with some that nobody knows. Where bash starts
    nothing at all, or no sandbox works here, the programs are those in the text.
    """
    programs = _Programs(file)
    found = programs.started(arguments) or programs.written()
    if programs.stop and not found:
        raise UserError(f"{file}:{programs.stop[0]}: bash ends the script: {programs.stop[1]}")
    return found


class _Programs:
    """The programs of a script and of the scripts that it names."""

    def __init__(self, file: Path) -> None:
        self.files = named_files(file)
        shells = {path: text for path, text in self.files.items() if path.suffix not in (".yaml", ".yml")}
        texts = [ScriptText(path, text.decode(errors="replace")) for path, text in shells.items()]
        self.file, self.texts = file, texts or [ScriptText(file, "")]
        self.texts[0].file = file  # as the user names it
        self.unset = needed(self.texts, os.environ)
        self.stop: tuple[int, str] | None = None
        """Line and message with which bash ended the script."""

    def started(self, arguments: Sequence[str]) -> list[Source]:
        """Those that bash starts. Raises UserError for a script that does not end."""
        run = self._run(arguments)
        found = self._sources(run) if run else []
        for source in found:
            source.mistakes += self._unset_stops(arguments)
        self.stop = run.stop if run else None
        if run is None or found or arguments:
            return found
        asked = self._run([mark(f"ARG_{number}") for number in range(1, ARGUMENTS + 1)])
        return self._sources(asked) if asked else []

    def written(self) -> list[Source]:
        """Those in the text, each with the settings that stand there outside of any program, in arrays for example."""
        text, folder, found, apart = self.texts[0], str(Path.cwd()), list[Source](), list[Word]()
        for words in text.commands:
            if find_launch(words):
                self._add(found, text, folder, words, certain=False)
            else:
                apart += [word for word in words if DOTTED.fullmatch(word.text)]
        for source in found:
            source.mistakes += [self.stop] if self.stop else []
            for word in apart:
                _add(source, text.file, word)
        return found

    def _run(self, arguments: Sequence[str], *, known: bool = True) -> BashRun | None:
        """`known`: variables that are not set have marks."""
        code = "\n".join(text.text for text in self.texts)
        named = set(re.findall(r"\w+", code))
        variables = {name: value for name, value in os.environ.items() if name in named - BY_BASH}
        missing = [name for name in set(IMPORTED.findall(code)) if importlib.util.find_spec(name) is None]
        variables |= {name: mark(name) for name in self.unset if known} | {"AGENTRL_MISSING": " ".join(missing)}
        run = run_bash(self.file, self.files, arguments, variables)
        if run and run.endless:
            raise UserError(f"{self.file} does not end: bash was stopped after {SECONDS:g} s")
        return run

    def _sources(self, run: BashRun) -> list[Source]:
        found: list[Source] = []
        for called in run.commands:
            launch = find_launch([Word(word) for word in called.words])
            name = re.escape(launch.program if launch else called.words[0])
            text = next((text for text in self.texts if text.line_of(name)), self.texts[0])
            words = text.place(called.words, text.line_of(name))
            self._add(found, text, called.folder, words, certain=True)
        return found

    def _unset_stops(self, arguments: Sequence[str]) -> list[tuple[int, str]]:
        """The line at which `set -u` ends the script for a variable that is not set, and a message."""
        run = self._run(arguments, known=False) if self.unset and NOUNSET.search(self.texts[0].text) else None
        line, text = (run and run.stop) or (0, "")
        name, _, why = text.partition(": ")
        return [(line, f"{name} is not set, and set -u ends the script")] if why == UNBOUND else []

    def _add(self, found: list[Source], text: ScriptText, folder: str, words: Sequence[Word], *, certain: bool) -> None:
        """The program of a command, if there is one; or settings without a program."""
        launch = find_launch(words)
        settings = [word for word in words if SETTING.fullmatch(word.text)]
        if launch is not None:
            if settings or HYDRA.match(launch.program) or "model_merger" in launch.program:
                found.append(self._program(launch, text.file, folder, words[0].line, certain))
            return
        if found and words and DOTTED.fullmatch(words[0].text):
            found[-1].lost += [(word.line, MARK.sub(r"$\1", word.text)) for word in words]
        elif dotted := [word for word in words[1:] if DOTTED.fullmatch(word.text)]:
            found.append(Source(line=words[0].line, certain=certain))
            for word in dotted:
                _add(found[-1], text.file, word)

    def _program(self, launch: Launch, file: Path, folder: str, line: int, certain: bool) -> Source:
        words = tuple(word.text for word in launch.arguments)
        source = Source(program=launch.program, line=line, launcher=launch.launcher, words=words, unset=self.unset)
        source.certain, source.folders = certain, (Path(folder),)
        options: dict[str, Word] = {}
        rest = list(_without_options(launch.arguments, options))
        _read_chosen(source, [Path(folder), *file.resolve().parents], launch, options)
        for key, value in launch.processes:
            if value.text.isdigit():
                source.settings.append(Given(file, value.line, f"trainer.{key}", int(value.text)))
        for word in rest:
            if SETTING.fullmatch(word.text) or (HYDRA.match(launch.program) and not MARK.fullmatch(word.text)):
                _add(source, file, word)
        return source


def _without_options(words: Sequence[Word], options: dict[str, Word]) -> Iterator[Word]:
    """The words that are no options; those that choose a file go to `options`."""
    left = iter(words)
    for word in left:
        option, sign, value = word.text.partition("=")
        if option in OPTIONS:
            chosen = Word(value, word.line) if sign else next(left, None)
            options |= {OPTIONS[option]: chosen} if chosen else {}
        elif not word.text.startswith("-"):
            yield word


def _read_chosen(source: Source, around: Sequence[Path], launch: Launch, options: Mapping[str, Word]) -> None:
    """The YAML that is chosen, where it can be found: its settings come first."""
    if "name" not in options:
        return
    name, folder = options["name"], options["folder"].text if "folder" in options else ""
    beside = Path(*launch.program.split(".")[:-1])  # where Hydra looks
    places = [place / folder for place in around] if folder else []
    places += [place / beside / (folder or OWN_FOLDER) for place in around]
    for place in places:
        if (file := place / f"{name.text.removesuffix('.yaml')}.yaml").is_file():
            YamlFiles(source, file.parent).read(file, "")
            return
    stem, beside_it = name.text.removesuffix(".yaml"), Path(folder or OWN_FOLDER) == Path(OWN_FOLDER)
    if unsure(name.text) or unsure(folder) or (beside_it and stem in shipped()[""]):
        source.includes.append((name.line, f"{stem}.yaml, which --config-name names"))
        return
    reason = why_not(stem)
    reason = reason or f"no such file in {folder or 'config'}, beside the program or here"
    source.mistakes.append((name.line, f"--config-name={name.text}: {reason}"))


def _add(source: Source, file: Path, word: Word) -> None:
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
    name, way = override.get_key_element().lstrip("+~"), ADDED if word.text.startswith("+") else CHANGED
    if "@" in name or ("/" in name and not name.startswith("hydra/")):
        source.includes.append((word.line, MARK.sub(r"$\1", word.text)))  # the choice of a file
    elif not override.is_delete():
        source.settings += _flat(Given(file, word.line, name, override.value(), way))


def _flat(given: Given) -> Iterator[Given]:
    """`a={b: 1}` as `a.b=1`."""
    if not isinstance(given.value, Mapping) or not given.value:
        yield given
        return
    for name, value in given.value.items():
        yield from _flat(replace(given, path=f"{given.path}.{name}", value=value))
