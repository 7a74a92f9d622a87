"""What the types cannot say: words, ranges, keys that do not go together, files that must exist.

A check is a function whose parameters are named after the sections it reads (`config`: all of them; `folders`: those of
the user's YAML files); it runs on every schema that has them. It raises UserError, or returns a note. Checking stops at
the first error: its fix often fixes the next one too.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.config.checks import algorithm, files, fit, ranges, staleness, teachers
from agentrl.config.choices import own_objects
from agentrl.config.keys import as_list, places
from agentrl.config.paths import check_paths, settle_paths
from agentrl.core.errors import UserError

Check = Callable[..., str | None]


def checks_of(*modules: ModuleType) -> tuple[Check, ...]:
    """The public functions of modules in `agentrl.config.checks`, in the order of the source."""
    members = ((module, *member) for module in modules for member in vars(module).items())
    return tuple(
        member
        for module, name, member in members
        if inspect.isfunction(member) and member.__module__ == module.__name__ and not name.startswith("_")
    )


FILES: tuple[Check, ...] = (check_paths, files.custom_class, files.resume, files.run_outputs)
SETTINGS: tuple[Check, ...] = (*checks_of(ranges, algorithm, teachers, fit, staleness), *FILES)
"""Mistakes in what is set."""

TRAINING: tuple[Check, ...] = (files.required, *SETTINGS)
"""Those, and the keys that every run needs."""

UPDATING = (
    algorithm.group_size,
    algorithm.batch_sizes,
    fit.policies,
    fit.same_answers,
    fit.split_experts,
    files.run_outputs,
)
SAMPLING: tuple[Check, ...] = (files.required, *(check for check in SETTINGS if check not in UPDATING))
"""Mistakes that matter to a run which samples and does not update."""

ANSWERING: tuple[Check, ...] = (*checks_of(ranges), check_paths, files.answers_output)
"""Mistakes that matter to `agentrl generate` and `agentrl eval`."""

SUPERVISED: tuple[Check, ...] = (*checks_of(ranges), fit.split_experts, fit.learning_rate, *FILES)
"""Mistakes that matter to `agentrl sft`."""


def validate(config: Any, checks: Iterable[Check] = TRAINING, folders: Sequence[Path] = ()) -> list[str]:
    """Make the paths absolute and run the checks that apply; the notes they return.

    `folders`: those of the user's YAML files.
    """
    for place in places(config, tuple):
        check_word(place.key, place.value, place.mark)
    settle_paths(config, folders)
    own_objects(config)
    given = ((check, sections_for(check, config, folders)) for check in checks)
    results = [check(**sections) for check, sections in given if sections is not None]
    return [note for note in results if note]


def check_word(path: str, value: Any, words: tuple[str, ...]) -> None:
    """Raises UserError for a value, or a member of a list, that is none of its key's words."""
    for word in as_list(value):
        if word is not None and word not in words:
            *others, last = words
            raise UserError(f"{path}={word}: choose {', '.join(others)}{' or ' * bool(others)}{last}")


def sections_for(check: Check, config: Any, folders: Sequence[Path] = ()) -> dict[str, Any] | None:
    """The sections that a check asks for; None where the configuration does not have them all."""
    offered = {**vars(config), "config": config, "folders": folders}
    names = inspect.signature(check).parameters
    return {name: offered[name] for name in names} if names.keys() <= offered.keys() else None
