"""verl's programs, for launch scripts: `python3 -m verl.trainer.main_ppo KEY=VALUE ...` under `agentrl verl`.

Invariant: `agentrl config check` and a run ask the same table, `programs.yaml`, and get the same arguments.
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.foreign import read_beside

OWN_FOLDER = "config"
"""The folder of verl's own YAML files beside each program."""
TORCHRUN = re.compile(r"TORCHELASTIC_.*|MASTER_(ADDR|PORT)|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)")
"""What torchrun tells its processes. Left in place, ours would wait for its store, which knows nothing of them."""


@dataclass(frozen=True)
class Program:
    """What becomes of a program of verl's."""

    name: str
    command: str = ""
    """The command that does the same; "" where none does."""
    reason: str = ""
    """Why none does."""


@cache
def table() -> Mapping[str, Any]:
    """What programs.yaml says."""
    found: Mapping[str, Any] = read_beside(__file__, "programs.yaml")
    return found


def find_program(name: str) -> Program | None:
    """The program of a module's name; None for one that is not in the table."""
    served, refused = table()["served"], table()["refused"]
    if command := served.get(name, served.get(f"{name}.__main__")):
        return Program(name, command)
    return next((Program(name, reason=refused[above]) for above in ancestry(name) if above in refused), None)


def programs_of(argv: Sequence[str]) -> frozenset[str]:
    """Modules that `python -m` runs as commands of agentrl's; of those refused the one that `argv` names."""
    started = started_module(argv)
    program = find_program(started)
    return frozenset({*table()["served"], *([started] if program is not None and program.reason else [])})


def started_module(argv: Sequence[str]) -> str:
    """The module after `-m` in Python's own arguments; "" where there is none."""
    words = iter(argv[1:])
    for word in words:
        if word == "-m" or not word.startswith("-"):
            return next(words, "") if word == "-m" else ""
        if word in ("-X", "-W"):
            next(words, "")
    return ""


def ancestry(module: str) -> Iterator[str]:
    """a.b.c, a.b, a."""
    parts = module.split(".")
    yield from (".".join(parts[:end]) for end in range(len(parts), 0, -1))


def run(name: str, args: Sequence[str]) -> int:
    """Become the command that stands for the program `name`; an exit code where none does.

    torchrun starts a program many times: the first is enough, for agentrl starts as many processes by itself.
    """
    if int(os.environ.get("RANK", 0)):
        return 0
    started = {name: os.environ.pop(name) for name in filter(TORCHRUN.fullmatch, list(os.environ))}
    program = find_program(name)
    if program is None or not program.command:
        sys.stderr.write(f"error: {not_served(name, program)}\n")
        return 2
    world, local = (int(started.get(key, 1)) for key in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    try:
        arguments = arguments_of(program, args, processes(world, local))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stderr.write(f"agentrl verl: {name} runs as `agentrl {program.command}`\n")
    sys.stderr.flush()
    return become([program.command, *arguments])


def become(arguments: Sequence[str]) -> int:
    """Replace this process by `agentrl ARGUMENTS`."""
    os.execv(sys.executable, [sys.executable, "-m", "agentrl", *arguments])


def not_served(name: str, program: Program | None) -> str:
    """One line on a program that nothing stands for."""
    served = "verl.trainer.main_ppo, recipe.dapo.main_dapo and verl.trainer.sft_trainer are"
    return f"{name} is not served: {program.reason if program else served}"


def arguments_of(program: Program, args: Sequence[str], started: Sequence[str] = ()) -> list[str]:
    """The command's arguments for the program's. Raises UserError."""
    if program.command == "merge":
        return merge_arguments(args)
    options, settings = _chosen_file(program, [arg.removeprefix("++") for arg in args])
    begun = started if program.command == "sft" else ()
    return [f"--program={program.name}", *options, *begun, *settings]


def _chosen_file(program: Program, args: Sequence[str]) -> tuple[list[str], list[str]]:
    """(options, settings): a folder beside the program's own file, where Hydra looks, is found in a checkout too; the
    program's own one needs no checkout, for agentrl's files stand for verl's."""
    options = [arg for arg in args if arg.startswith("--config-path=")]
    named = [arg.partition("=")[2].removesuffix(".yaml") for arg in args if arg.startswith("--config-name=")]
    folder = options[-1].partition("=")[2] if options else OWN_FOLDER
    beside = Path(*program.name.split(".")[:-1], folder)
    found = named and (beside / f"{named[-1]}.yaml").is_file()
    if (options and Path(folder).is_dir()) or not (found or Path(folder) == Path(OWN_FOLDER)):
        return [], list(args)
    return [f"--config-path={beside}"] if found else [], [arg for arg in args if arg not in options]


def processes(world: int, local: int) -> list[str]:
    """Settings for the number of processes given to torchrun, `local` on each machine."""
    return [] if world == 1 else [f"trainer.n_gpus_per_node={local}", f"trainer.nnodes={world // local}"]


def merge_arguments(args: Sequence[str]) -> list[str]:
    """`merge --backend fsdp --local_dir A/global_step_1/actor --target_dir B` as agentrl takes it. Raises UserError."""
    import argparse

    parser = argparse.ArgumentParser("verl.model_merger")
    parser.add_argument("operation", choices=["merge", "test"])
    for name in ("--backend", "--local_dir", "--target_dir", "--hf_model_path", "--hf_upload_path"):
        parser.add_argument(name)
    parser.add_argument("--is-value-model", action="store_true")
    known, _ = parser.parse_known_args(args)
    if known.is_value_model:
        raise UserError("verl.model_merger: a critic is not merged; remove --is-value-model and name the policy")
    if known.operation == "test" or known.backend == "megatron":
        raise UserError("verl.model_merger: only `merge --backend fsdp` is there; Megatron's checkpoints are not read")
    if known.hf_upload_path:
        raise UserError("verl.model_merger: nothing is uploaded; remove --hf_upload_path")
    if not known.local_dir or not known.target_dir:
        raise UserError("verl.model_merger: name --local_dir and --target_dir")
    return [str(checkpoint(Path(known.local_dir))), known.target_dir, "--overwrite"]


def checkpoint(place: Path) -> Path:
    """The checkpoint that verl would have at `place`: ours lie in a folder of their own beside it."""
    from agentrl.training.checkpoint.lineage import FOLDER

    step = place.parent if place.name == "actor" else place
    ours = step.parent / FOLDER / step.name
    return ours if ours.exists() and not step.exists() else step


THEIRS = ("verl", "recipe")


def job_words(argv: Sequence[str]) -> list[str]:
    """`ray job submit ... -- COMMAND` with `agentrl verl` before the command, which runs on another machine."""
    words = list(argv)
    if not words or PurePath(words[0]).name != "ray" or words[1:3] != ["job", "submit"] or "--" not in words:
        return words
    at = words.index("--") + 1
    return words if words[at : at + 2] == ["agentrl", "verl"] else [*words[:at], "agentrl", "verl", *words[at:]]


def explain_missing(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """One line where code asks for a module of verl's that agentrl does not have; a traceback for all else."""
    name = (error.name or "") if isinstance(error, ImportError) else ""
    if name.partition(".")[0] not in THEIRS:
        sys.__excepthook__(kind, error, trace)
        return
    asked = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith("<")]
    place = f"{asked[-1].filename}:{asked[-1].lineno} " if asked else ""
    sys.stderr.write(
        f"error: {place}asks for {name}, which agentrl does not have ({error}): what is built on verl's own trainer or "
        "workers has to be written for agentrl's; docs/from-verl.md says what runs\n"
    )
