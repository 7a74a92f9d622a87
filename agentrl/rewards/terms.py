"""The reward functions of a run, each with its manager and its weight, and the sum of their scores.

Invariant: a trajectory has the scores of all functions, or none: a failure of one is a failure of the sum.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import fsum
from numbers import Real
from types import MappingProxyType
from typing import Any

from agentrl.config.given import is_given
from agentrl.config.schema.reward import RewardTerm
from agentrl.core.errors import InfraError, UserError, located
from agentrl.core.isolated import Failed
from agentrl.core.json_text import cleaned
from agentrl.core.numbers import is_reward
from agentrl.rewards.function import TERMS, RewardFn, load_reward_function, reward_function
from agentrl.rewards.managers import Manager

Values = dict[str, Any]
"""All values that a reward function returned: numbers as floats, others as plain data."""


@dataclass(frozen=True)
class Term:
    """A reward function and what calls it."""

    manager: Manager
    """Calls `fn`, or is a reward function itself."""
    fn: RewardFn | None = None
    weight: float = 1.0
    name: str | None = None
    """The name of its score among several; None: it is the only one."""

    async def score(self, given: Mapping[str, Any], key: str) -> tuple[float, Values]:
        """The weighted score of the trajectory `key`, and the values to log. Raises InfraError where there is no finite
        score."""
        called = self.name or ("manager" if self.fn is None else self.fn.name)
        try:
            result = await self.manager(given if self.fn is None else self.fn.arguments(given), key)
        except UserError:  # such as a missing package: masking would train on the answers that did not need it
            raise
        except Failed as error:  # in another process
            raise InfraError(f"reward function {called} failed: {error}") from error
        except InfraError as error:
            raise InfraError(f"reward function {called}: {error}") from error
        except Exception as error:  # the user's code may raise anything
            raise InfraError(f"reward function {called} failed: {located(error)}") from error
        score, values = _parts(result, called)
        if self.name is None:
            return self.weight * score, values
        others = [(name, value) for name, value in values.items() if name != "score"]
        return self.weight * score, _united([[(self.name, score)], others])


async def total(terms: Sequence[Term], given: Mapping[str, Any], key: str) -> tuple[float, Values]:
    """The sum of all terms, which run together, and their values.

    Raises InfraError where one has no finite score, and UserError where two have a value of one name.
    """
    found = await asyncio.gather(*(term.score(given, key) for term in terms), return_exceptions=True)
    errors = [each for each in found if isinstance(each, BaseException)]
    if errors:
        raise next((error for error in errors if isinstance(error, UserError)), errors[0])
    scored = [each for each in found if not isinstance(each, BaseException)]
    return fsum(score for score, _ in scored), _united([values.items() for _, values in scored])


def load_terms(
    functions: Mapping[str, RewardTerm],
    given: Mapping[str, Callable[..., Any]],
    *,
    batch: bool,
    offered: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, RewardFn]:
    """The functions of `reward.functions`, by name: a `given` object, or what the settings name; an object that is not
    among them is left out. `offered`: as in `load_reward_function`. Raises UserError."""
    found = dict[str, RewardFn]()
    for name, term in functions.items():
        if name in given:
            found[name] = reward_function(given[name], term.reward_kwargs, batch=batch, offered=offered)
        elif not is_given(term.path):
            called, kwargs, section = term.name or name, term.reward_kwargs, f"{TERMS}.{name}"
            fn = load_reward_function(term.path, called, kwargs, batch=batch, offered=offered, section=section)
            found |= {name: fn} if fn else {}
    return found


def _united(parts: Sequence[Any]) -> Values:
    """One dict of the items of `parts`. Raises UserError where a name is there twice."""
    items = [*chain.from_iterable(parts)]
    twice = [name for name, count in Counter(name for name, _ in items).items() if count > 1]
    if twice:
        raise UserError(f"{TERMS}: two values are called {twice[0]!r}; rename the function, or the value in its dict")
    return dict(items)


def _parts(result: Any, name: str) -> tuple[float, Values]:
    """The score in what a reward function returned, and all values of its dict.

    Raises InfraError when there is no finite score.
    """
    values = dict(result) if isinstance(result, Mapping) else {"score": result}
    if "score" not in values:
        has = ", ".join(map(str, values))
        raise InfraError(f'reward function {name} returned a dict without "score"; it has {has}')
    numbers = {str(key): number for key, value in values.items() if (number := _number(value)) is not None}
    score = numbers.get("score")
    if score is None or not is_reward(score):
        raise InfraError(f"reward function {name} returned {values['score']!r}, not a finite number")
    return score, cleaned(values) | numbers if isinstance(result, Mapping) else {}


def _number(value: Any) -> float | None:
    """Python's, numpy's and torch's numbers as a float; None for anything else."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    return float(value) if isinstance(value, Real) else None
