"""What becomes of a file: each program that it starts, its settings, and whether a run would stop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from agentrl.config.schema.commands import SCHEMAS
from agentrl.config.sources import Source
from agentrl.config.verdict import FATAL, Verdict, judge, together
from agentrl.config.verl_defaults import of_source
from agentrl.verl.programs import Program, find_program, not_served

CHECKED_AS = {"train": "train", "sft": "sft", "eval": "eval", "generate": "eval"}
"""The command whose settings each command takes; those of others are not looked at here."""


@dataclass
class Checked:
    """One program, or one YAML file, and what a run would do with it."""

    source: Source
    command: str
    """The command that runs it; "" where none does."""
    reason: str = ""
    """Why none does."""
    verdicts: list[Verdict] = field(default_factory=list)
    complaints: list[tuple[str, bool]] = field(default_factory=list)
    """What settings say together, and whether it stops a run."""
    unset: list[str] = field(default_factory=list)
    """What verl's defaults make of the keys that are not set."""

    @property
    def served(self) -> bool:
        """Whether a command runs it."""
        return bool(self.command)

    @property
    def troubles(self) -> list[str]:
        """Why a run would stop, in the order of the file."""
        found = [text for _, text in self.source.mistakes]
        found += [f"{one.given.path}: {one.text}" for one in self.verdicts if one.kind in FATAL]
        return [*found, *(text for text, stops in self.complaints if stops)]

    @property
    def stops(self) -> bool:
        """Whether a run would not begin."""
        return not self.served or bool(self.troubles)


def check_sources(sources: Sequence[Source], command: str | None = None) -> Iterator[Checked]:
    """Judge each source, as settings of `command` unless it says itself what it is for."""
    for source in sources:
        program = find_program(source.program) if source.program else None
        name = command or _command(source, program)
        if not name:
            yield Checked(source, "", not_served(source.program, program))
            continue
        yield _checked(source, name)


def _checked(source: Source, command: str) -> Checked:
    if command not in CHECKED_AS:
        return Checked(source, command)
    schema = SCHEMAS[CHECKED_AS[command]]
    verdicts = judge(source, schema)
    whole = together(verdicts, schema, of_source(source, schema))
    return Checked(source, command, "", verdicts, list(whole), whole.unset)


def _command(source: Source, program: Program | None) -> str:
    if program is not None:
        return program.command
    unknown = source.program and not source.program.startswith("agentrl")
    return "" if unknown else guess_command(source)


def guess_command(source: Source) -> str:
    """The command that a file's settings belong to, by the program a script calls or by the sections that it has."""
    roots = {given.path.split(".")[0] for given in source.settings}
    paths = {given.path for given in source.settings}
    if "sft" in source.program or "optim" in roots:
        return "sft"
    if source.program.endswith(("main_eval", "eval")) or paths & {"data.response_key", "data.path"}:
        return "eval"
    return "train"
