"""A reward function of the user's own, checked before anything else starts.

The contract is verl's `compute_score(data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs)`,
called by keyword, sync or async, returning a number or a mapping with "score". A function that names a parameter
`trajectory` gets the whole Trajectory as well, one that names `sandbox` the run's Sandbox. Under the manager `batch` it
is `compute_score(data_sources, solution_strs, ground_truths, extra_infos=None, **reward_kwargs)`, with lists.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agentrl.config.schema.reward import Reward
from agentrl.core.errors import UserError
from agentrl.core.plugin_checks import check_answers
from agentrl.core.plugins import load_attribute
from agentrl.core.user_code import UserFunction
from agentrl.trajectory.trajectory import Trajectory

SECTION = "reward.custom_reward_function"
TERMS = "reward.functions"
REQUIRED = ("data_source", "solution_str", "ground_truth")
OPTIONAL = ("extra_info", "trajectory", "sandbox")
ROUTER = "reward_router_address"
"""Names the server of a generative reward model."""
DEFAULT_NAME = "compute_score"
PLURALS = {
    "data_source": "data_sources",
    "solution_str": "solution_strs",
    "ground_truth": "ground_truths",
    "extra_info": "extra_infos",
    "trajectory": "trajectories",
}
"""Names of the arguments where they are lists."""


@dataclass(frozen=True)
class RewardFn:
    """A function that is known to take what it will be given."""

    function: Callable[..., Any]
    name: str
    kwargs: dict[str, Any]
    """`reward_kwargs`, passed on with every call."""
    accepted: frozenset[str]
    """The names of OPTIONAL that it asks for."""
    origin: tuple[str, str] = ("", "")
    """The path, or module, and the name by which another process loads it; empty where none can."""
    shared: bool = False
    """Whether a program has passed it as an object: it may share the state of that program."""

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments among `given` that the function takes, and `reward_kwargs`."""
        return {key: value for key, value in given.items() if key in REQUIRED or key in self.accepted} | self.kwargs


def names_function(reward: Reward) -> bool:
    """Whether the settings name a reward function, or several."""
    one = reward.custom_reward_function
    return bool(reward.functions or one.path or ":" in one.name)  # "module:function" needs no path


def load_reward_function(
    path: str | None,
    name: str,
    reward_kwargs: Mapping[str, Any],
    *,
    batch: bool | None = False,
    offered: Mapping[str, Any] = MappingProxyType({}),
    section: str = SECTION,
) -> RewardFn | None:
    """The function `name` in a Python file or dotted module `path`, or `name` as "module:function" without a path.

    `batch`: it takes lists; None: a manager of the user's own calls it, in words of its own. `offered`: further
    arguments, of which it gets those that it takes. `section`: its settings, for messages. None where neither names
    one. Raises UserError in one line when it does not load or has another signature.
    """
    if path is None and ":" in name:
        path, _, name = name.partition(":")
    if path is None and name == DEFAULT_NAME and section == SECTION:
        return None
    if path is None:
        raise UserError(f"{section}.name={name} names no file; set {section}.path, or name=module:function")
    function = load_attribute(path, name, what=section, section=True)
    return reward_function(function, reward_kwargs, batch=batch, offered=offered, origin=(path, name), section=section)


def reward_function(
    function: Any,
    reward_kwargs: Mapping[str, Any],
    *,
    batch: bool | None = False,
    offered: Mapping[str, Any] = MappingProxyType({}),
    origin: tuple[str, str] | None = None,
    section: str = SECTION,
) -> RewardFn:
    """A function, checked. `origin`: the file or module, and the name, that it was loaded from; None: a program passes
    it as an object. Raises UserError where its signature does not fit."""
    name = function_name(function) if origin is None else origin[1]
    where = f"reward={name}" if origin is None else f"{section}: {origin[0]}"
    if not callable(function):
        found = f"a reward is {function!r}: pass a function"
        kind = type(function).__name__
        raise UserError(found if origin is None else f"{section}: {name} in {origin[0]} is no function but a {kind}")
    check_answers(function, where, "the score, a number")
    taken = UserFunction(function).fit(offered) if offered else {}
    kwargs = {**taken, **reward_kwargs}
    words = PLURALS if batch else {key: key for key in (*REQUIRED, *OPTIONAL)}
    accepted = frozenset[str]() if batch is None else _check(function, name, kwargs, words, section)
    return RewardFn(function, name, kwargs, accepted, origin or _origin(function), shared=origin is None)


def function_name(function: Any) -> str:
    """The name of a function, or of another object that can be called, in messages."""
    return str(getattr(function, "__name__", type(function).__name__))


def _origin(function: Any) -> tuple[str, str]:
    """The module and name by which another process imports a function; ("", "") where none does."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    there = module != "__main__" and getattr(sys.modules.get(module), name, None) is function
    return (module, name) if there else ("", "")


def _check(
    function: Callable[..., Any], name: str, kwargs: Mapping[str, Any], words: Mapping[str, str], section: str
) -> frozenset[str]:
    """The OPTIONAL arguments that `function` takes, which calls them by `words`.

    Raises UserError when it cannot be called as it will be.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters
    catches_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    accepted = {key for key in OPTIONAL if words.get(key) in parameters} | ({"extra_info"} if catches_all else set())
    if clash := kwargs.keys() & {*words.values()}:
        raise UserError(f"{section}.reward_kwargs.{min(clash)} is set by agentrl itself; take it out")
    try:
        signature.bind(**dict.fromkeys([*(words[key] for key in (*REQUIRED, *accepted)), *kwargs]))
    except TypeError as error:
        if ROUTER in parameters and ROUTER not in kwargs:
            fix = "set reward.reward_model.enable=true, and reward.reward_model.url to the HOST:PORT of its server"
            raise UserError(f"{section}: {name} asks a generative reward model ({ROUTER}): {fix}") from None
        required = [words[key] for key in REQUIRED]
        wanted = ", ".join([*required, f"{words['extra_info']}=None", *(f"{key}=..." for key in kwargs)])
        raise UserError(f"{section}: {name}{signature} does not fit ({error}); make it {name}({wanted})") from None
    return frozenset(accepted)


def arguments(trajectory: Trajectory, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """All arguments that a reward function may take, by keyword."""
    row = trajectory.row
    return {
        "data_source": row.data_source,
        "solution_str": solution(trajectory, decode),
        "ground_truth": row.ground_truth,
        "extra_info": row.extra_info
        | trajectory.extra
        | {"num_turns": num_turns(trajectory), "rollout_reward_scores": reward_scores(trajectory)},
        "trajectory": trajectory,
    }


def solution(trajectory: Trajectory, decode: Callable[[list[int]], str]) -> str:
    """The model's own text: its turns in order, one a line, without tool results, user turns or template tokens.

    A turn that stands in several ledgers, because history was rewritten after it, counts once.
    """
    turns: dict[int, list[int]] = {}
    for ledger in trajectory.ledgers:
        turns = ledger.turn_ids() | turns  # the first to have it wins
    return "\n".join(decode(turns[turn]).strip() for turn in sorted(turns))


def num_turns(trajectory: Trajectory) -> int:
    """Turns of the conversation as verl counts them: the prompt, each assistant turn, each answer to one."""
    answered = len({call.turn for call in trajectory.tool_calls})
    return 1 + trajectory.turns + answered + trajectory.user_turns


def reward_scores(trajectory: Trajectory) -> dict[str, Any]:
    """Rewards of tools, and of the interaction turn by turn, under verl's names."""
    by_source: dict[str, list[float]] = {"tool": [], "interaction": [], "environment": []}
    for reward in trajectory.turn_rewards:
        by_source[reward.source].append(reward.value)
    scores: dict[str, Any] = {**trajectory.tool_rewards, "user_turn_rewards": by_source["interaction"]}
    scores["tool_turn_rewards"] = by_source["tool"]
    if trajectory.interaction_score is not None:
        scores["interaction_score"] = trajectory.interaction_score
    return scores
