"""Finds the Python program in a command line, behind its launcher."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

MARK = re.compile("\x02(\\w+)\x03")


@dataclass(frozen=True)
class Word:
    """A word that a command gets, with the line that it is on."""

    text: str
    line: int = 0


def mark(name: str) -> str:
    """A mark; `name` is a variable's, ARG_1 for an argument, COMMAND for the output of a command."""
    return f"\x02{name}\x03"


def unsure(text: str) -> bool:
    """Whether some of a text is not known."""
    return "\x02" in text


PYTHON = re.compile(r"python[\d.]*")
VALUED = ("-X", "-W", "--check-hash-based-pycs")
"""Python's options with a value of their own."""
TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
FLAGS = ("--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "--use-env", "--use_env")
"""torchrun's options without a value."""
PROCESSES = re.compile(r"--(nnodes|nproc[-_]per[-_]node)")


@dataclass(frozen=True)
class Launch:
    """A program and what it is given."""

    program: str
    """A module's name, or a file."""
    arguments: tuple[Word, ...]
    launcher: str
    processes: tuple[tuple[str, Word], ...] = ()
    """nnodes and n_gpus_per_node as given to torchrun."""


def find_launch(words: Sequence[Word]) -> Launch | None:
    """The program of a command such as `nohup env A=1 python3 -u -m verl.trainer.main_ppo a=b`."""
    by_ray = [word.text for word in words[:3]] == ["ray", "job", "submit"]
    for number, word in enumerate(words):
        name = PurePosixPath(word.text).name
        if PYTHON.fullmatch(name):
            launch = _python(words[number + 1 :])
        elif name in TORCHRUN:
            launch = _torchrun(words[number + 1 :])
        else:
            continue
        if launch is not None and by_ray:
            return Launch(launch.program, launch.arguments, "ray", launch.processes)
        return launch
    return None


def _python(words: Sequence[Word]) -> Launch | None:
    at = 0
    while at < len(words):
        text = words[at].text
        if text == "-m" and at + 1 < len(words):
            module, rest = words[at + 1].text, words[at + 2 :]
            return _torchrun(rest) if module in TORCHRUN else Launch(module, tuple(rest), "python")
        if text == "-c" and at + 1 < len(words):
            return None
        if not text.startswith("-"):
            return Launch(module_of(text), tuple(words[at + 1 :]), "python")
        at += 2 if text in VALUED else 1
    return None


def _torchrun(words: Sequence[Word]) -> Launch | None:
    at, processes = 0, list[tuple[str, Word]]()
    while at < len(words):
        option, sign, value = words[at].text.partition("=")
        if option in ("-m", "--module") and at + 1 < len(words):
            return Launch(words[at + 1].text, tuple(words[at + 2 :]), "torchrun", tuple(processes))
        if not option.startswith("-"):
            return Launch(module_of(words[at].text), tuple(words[at + 1 :]), "torchrun", tuple(processes))
        if not sign and option not in FLAGS:
            at += 1
            value = words[at].text if at < len(words) else ""
        if (found := PROCESSES.fullmatch(option)) and not unsure(value):
            key = "nnodes" if found[1] == "nnodes" else "n_gpus_per_node"
            processes.append((key, Word(value, words[min(at, len(words) - 1)].line)))
        at += 1
    return None


def module_of(file: str) -> str:
    """verl.trainer.main_ppo for any/path/verl/trainer/main_ppo.py; other files stay as they are."""
    found = re.search(r"(?:^|/)((?:verl|recipe)/[\w/]+)\.py$", file)
    return found[1].replace("/", ".") if found else file
