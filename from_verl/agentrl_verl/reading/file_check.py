"""Checks a file: the programs it starts, their settings, and whether a run would stop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from agentrl.config.schema.commands import SCHEMAS
from agentrl.core.errors import UserError
from agentrl_verl.programs import Program, find_program, not_served
from agentrl_verl.reading.defaults import of_source
from agentrl_verl.reading.program_settings import Source
from agentrl_verl.reading.verdicts import FATAL, Verdict, complaints, composed, judge, trouble_here

CHECKED_AS = {"train": "train", "sft": "sft", "eval": "eval", "generate": "eval"}
"""Command -> command with the same settings; commands not listed are not checked."""


@dataclass
class Checked:
    """Result of the check of one program or YAML file."""

    source: Source
    command: str
    """The command that runs it; "" if none does."""
    reason: str = ""
    """Why no command runs it."""
    verdicts: list[Verdict] = field(default_factory=list)
    complaints: list[tuple[str, bool]] = field(default_factory=list)
    """(message about a combination of settings, whether it stops a run)."""
    unset: list[str] = field(default_factory=list)
    """Notes about unset keys that take verl's defaults."""

    @property
    def served(self) -> bool:
        """Whether a command runs it."""
        return bool(self.command)

    @property
    def troubles(self) -> list[str]:
        """Reasons why a run would stop, in the order of the file."""
        found = [text for _, text in self.source.mistakes]
        found += [f"{one.given.path}: {one.text}" for one in self.verdicts if one.kind in FATAL]
        return [*found, *(text for text, stops in self.complaints if stops)]

    @property
    def stops(self) -> bool:
        """Whether a run would stop at its start."""
        return not self.served or bool(self.troubles)


def check_sources(sources: Sequence[Source], command: str | None = None, *, files: bool = False) -> Iterator[Checked]:
    """Check each source as settings of `command`, or of the program that it names; `files`: also those it names."""
    for source in sources:
        program = find_program(source.program) if source.program else None
        name = command or _command(source, program)
        if not name:
            yield Checked(source, "", not_served(source.program, program))
            continue
        yield _checked(source, name, files=files)


def _checked(source: Source, command: str, *, files: bool) -> Checked:
    if command not in CHECKED_AS:
        return Checked(source, command)
    schema = SCHEMAS[CHECKED_AS[command]]
    verl = of_source(source, schema)
    verdicts = judge(source, schema, open_files=verl is not None)
    try:
        config, notes = composed(verdicts, schema, verl, source.base)
    except UserError as error:
        return Checked(source, command, "", verdicts, [(str(error), True)])
    found = Checked(source, command, "", verdicts, list(complaints(config)), notes)
    if files and not found.stops:
        folders = dict.fromkeys([*source.folders, *(given.file.absolute().parent for given in source.settings)])
        found.complaints += trouble_here(config, list(folders))
    return found


def _command(source: Source, program: Program | None) -> str:
    if program is not None:
        return program.command
    unknown = source.program and not source.program.startswith("agentrl")
    return "" if unknown else guess_command(source)


def guess_command(source: Source) -> str:
    """Guess the command of a file from the program it calls or its sections."""
    roots = {given.path.split(".")[0] for given in source.settings}
    paths = {given.path for given in source.settings}
    if "sft" in source.program or "optim" in roots:
        return "sft"
    if source.program.endswith(("main_eval", "eval")) or paths & {"data.response_key", "data.path"}:
        return "eval"
    return "train"
