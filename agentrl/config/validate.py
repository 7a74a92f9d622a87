"""What the types cannot say: words, ranges, keys that do not go together, files that must exist.

A check is a function whose parameters are named after the sections it reads; it runs on every schema that has them. It
raises UserError, or returns a note. It stops at the first error: its fix often fixes the next one too.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from agentrl.config.checks import algorithm, files, fit, own, ready
from agentrl.config.choices import BY_PATH, CHOICES, REGISTERED
from agentrl.core.errors import UserError

Check = Callable[..., str | None]

SETTINGS: tuple[Check, ...] = (
    algorithm.positive_sizes,
    algorithm.cluster,
    algorithm.sampling,
    algorithm.server_memory,
    algorithm.group_size,
    algorithm.batch_sizes,
    algorithm.one_kl,
    algorithm.critic_fits,
    algorithm.bypassed,
    algorithm.correction_cap,
    algorithm.correction_words,
    algorithm.group_filter,
    algorithm.scores_in_time,
    algorithm.reward_manager,
    algorithm.overlong_buffer,
    algorithm.tools_without_turns,
    fit.lengths,
    fit.passes,
    fit.same_answers,
    fit.whole_distribution,
    fit.crowded_gpu,
    fit.validation,
    fit.warm_up,
    own.own_functions,
    own.own_critic,
    files.data_files,
    files.model_files,
    files.rollout_files,
    files.reward_files,
    files.resume,
)
"""Mistakes in what is set."""

TRAINING: tuple[Check, ...] = (ready.required, *SETTINGS)
"""Those, and the keys that every run needs."""


def validate(config: Any, checks: Iterable[Check] = TRAINING) -> list[str]:
    """Run the checks that apply; the notes they return."""
    check_words(config, CHOICES, registers=bool(_get(config, "model.external_lib")))
    results = [check(**sections) for check in checks if (sections := sections_for(check, config)) is not None]
    return [note for note in results if note]


def check_words(config: Any, choices: Mapping[str, tuple[str, ...]], *, registers: bool = False) -> None:
    """Raises UserError for a value, or a member of a list, that is none of its key's words.

    `registers`: a module of the user's own may give further ones a meaning.
    """
    for path, words in choices.items():
        if not (registers and path in REGISTERED):
            check_word(path, _get(config, path), words)


def check_word(path: str, value: Any, words: tuple[str, ...]) -> None:
    """The same for one key."""
    for word in value if isinstance(value, list) else [value]:
        if word is not None and word not in words and not _is_path(path, word):
            own = ", file.py:function, or a name that model.external_lib registers" if path in REGISTERED else ""
            raise UserError(f"{path}={word}: choose {_either(words)}{own}")


def _is_path(path: str, word: Any) -> bool:
    return path in BY_PATH and isinstance(word, str) and ("." in word or ":" in word)


def _get(config: Any, path: str) -> Any:
    return reduce(lambda node, name: getattr(node, name, None), path.split("."), config)


def _either(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def sections_for(check: Check, config: Any) -> dict[str, Any] | None:
    """The sections that a check asks for; None where the configuration does not have them all."""
    names = inspect.signature(check).parameters
    return {name: getattr(config, name) for name in names} if all(hasattr(config, name) for name in names) else None
