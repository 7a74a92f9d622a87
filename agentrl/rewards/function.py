"""A reward function of the user's own, checked before anything else starts.

The contract is verl's `compute_score(data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs)`,
called by keyword, sync or async, returning a number or a mapping with "score". A function that names a parameter
`trajectory` gets the whole Trajectory as well, one that names `sandbox` the run's Sandbox.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import UserError
from agentrl.plugins import load_attribute

SECTION = "reward.custom_reward_function"
REQUIRED = ("data_source", "solution_str", "ground_truth")
OPTIONAL = ("extra_info", "trajectory", "sandbox")
DEFAULT_NAME = "compute_score"


@dataclass(frozen=True)
class RewardFn:
    """A function that is known to take what it will be given."""

    function: Callable[..., Any]
    name: str
    kwargs: dict[str, Any]
    """`reward_kwargs`, passed on with every call."""
    accepted: frozenset[str]
    """Which of OPTIONAL it asks for."""

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Of what is `given`, the keyword arguments that the function takes, and `reward_kwargs`."""
        return {key: value for key, value in given.items() if key in REQUIRED or key in self.accepted} | self.kwargs


def load_reward_function(path: str | None, name: str, reward_kwargs: Mapping[str, Any]) -> RewardFn | None:
    """The function `name` in a Python file or dotted module `path`, or `name` as "module:function" without a path.

    None where neither names one. Raises UserError in one line when it does not load or has another signature.
    """
    if path is None and ":" in name:
        path, _, name = name.partition(":")
    if path is None and name == DEFAULT_NAME:
        return None
    if path is None:
        raise UserError(f"{SECTION}.name={name} names no file; set {SECTION}.path, or name=module:function")
    function = load_attribute(path, name, what=SECTION)
    if not callable(function):
        raise UserError(f"{SECTION}: {name} in {path} is no function but a {type(function).__name__}")
    return RewardFn(function, name, dict(reward_kwargs), _check(function, name, reward_kwargs))


def _check(function: Callable[..., Any], name: str, kwargs: Mapping[str, Any]) -> frozenset[str]:
    """The OPTIONAL arguments that `function` takes. Raises UserError when it cannot be called as it will be."""
    signature = inspect.signature(function)
    parameters = signature.parameters
    catches_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    accepted = {key for key in OPTIONAL if key in parameters} | ({"extra_info"} if catches_all else set())
    if clash := kwargs.keys() & {*REQUIRED, *OPTIONAL}:
        raise UserError(f"{SECTION}.reward_kwargs.{min(clash)} is set by agentrl itself; take it out")
    try:
        signature.bind(**dict.fromkeys([*REQUIRED, *accepted, *kwargs]))
    except TypeError as error:
        wanted = ", ".join([*REQUIRED, "extra_info=None", *(f"{key}=..." for key in kwargs)])
        raise UserError(f"{SECTION}: {name}{signature} does not fit ({error}); make it {name}({wanted})") from None
    return frozenset(accepted)
