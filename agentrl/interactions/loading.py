"""Interactions from YAML, as in verl 0.5 to 0.7, and the set of them that a run uses."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import isroutine
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError, reported_as
from agentrl.core.plugin_checks import check_answers, check_has, check_keys, check_method, check_spelling, inherits
from agentrl.core.plugins import Entry, read_entries
from agentrl.core.user_code import Cleanup, UserFunction, construct
from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.session import METHODS, InteractionSession
from agentrl.tools.options import ToolOptions
from agentrl.tools.runner import MethodRunner

YAML_KEY = "rollout.multi_turn.interaction_config_path"
RESPOND = "async def generate_response(self, instance_id, messages, **kwargs)"
ENTRY_KEYS = ("name", "class_name", "config")
OPTIONS = ("timeout", "in_thread")
CONFIG_KEYS = ("name", *OPTIONS)
"""Keys of `config` that agentrl reads."""

Placed = tuple[MethodRunner, str]
"""An interaction and where it comes from."""


class FunctionInteraction(BaseInteraction):
    """A user without state: `fn(messages, **kwargs)` reacts to the model's answer, the last of `messages`.

    `kwargs` are those of the row's `interaction_kwargs` that the function takes. It may be async or plain, and returns
    (should_terminate, content[, score[, extra]]) as `BaseInteraction.generate_response` does.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.function = UserFunction(fn)
        super().__init__({"name": self.function.name})

    async def generate_response(self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any) -> Any:
        """Call the function; a plain one runs in a thread."""
        return await self.function.run((messages,), self.function.fit(kwargs), timeout=None)


class InteractionSet:
    """The interactions by name. Empty (and false) is fine. Belongs to one event loop."""

    def __init__(self, runners: Mapping[str, MethodRunner]) -> None:
        self.runners = runners
        self.cleanup = Cleanup()

    def __len__(self) -> int:
        return len(self.runners)

    def open(self, key: str, interaction_kwargs: Mapping[str, Any]) -> InteractionSession:
        """The simulated user for the trajectory `key`. Raises UserError when the row names none that is loaded."""
        runner = self._runner(interaction_kwargs.get("name"), key)
        return InteractionSession(runner, {**interaction_kwargs, "name": runner.name}, self.cleanup)

    async def close(self) -> None:
        """Wait for finalize_interaction calls still under way; safe to call twice."""
        await self.cleanup.close()

    def _runner(self, name: Any, key: str) -> MethodRunner:
        if name is None and len(self.runners) == 1:
            return next(iter(self.runners.values()))
        if name in self.runners:
            return self.runners[name]
        names = ", ".join(self.runners) or f"none, set {YAML_KEY}"
        asked = "has no name" if name is None else f"names {name!r}"
        raise UserError(f"trajectory {key}: extra_info.interaction_kwargs {asked}: name one of those loaded ({names})")


def load_interactions(path: str | None, given: Iterable[Any] = ()) -> InteractionSet:
    """The interactions that a YAML file lists, and those `given` as objects, see `_given`. Raises UserError."""
    from_file = [] if path is None else _from_yaml(path)
    runners: dict[str, MethodRunner] = {}
    for runner, where in [*from_file, *(found for item in given for found in _given(item))]:
        if runner.name in runners:
            raise UserError(f"{where}: an interaction named {runner.name!r} is listed already: rename one")
        runners[runner.name] = runner
    return InteractionSet(runners)


def _from_yaml(path: str) -> Iterator[Placed]:
    for entry in read_entries(path, "interaction", what=YAML_KEY):
        options, name = _check(entry), entry.fields.get("name") or _default_name(entry.class_name)
        yield _runner(entry.make({**entry.config, "name": name}), name, entry, options), entry.where


def _given(item: Any) -> Iterable[Placed]:
    """The interactions of one object: an interaction, a class, a function, or the path of a YAML file.

    A function is called as `generate_response` is, without `instance_id`.
    """
    if isinstance(item, str | Path):
        return _from_yaml(str(item))
    if isroutine(item):
        check_answers(item, f"interactions: {item.__name__}", "(should_terminate, content, score, extra)")
    made_of = FunctionInteraction(item) if isroutine(item) else item
    kind = made_of if isinstance(made_of, type) else type(made_of)
    config = getattr(made_of, "config", None)
    where = f"interactions: {getattr(item, '__name__', kind.__name__)}"
    entry = Entry(Path(), where, kind.__name__, config if isinstance(config, dict) else {}, {})
    options = _check_class(entry, kind)
    if isinstance(made_of, type):
        name = _default_name(kind.__name__)
        with reported_as(f"{where}(config)"):
            made_of = construct(kind, {"config": {"name": name}})
    name = getattr(made_of, "name", None) or _default_name(kind.__name__)
    return [(_runner(made_of, str(name), entry, options), where)]


def check_interactions(path: str | None) -> None:
    """Check a run's interactions before one is made. Raises UserError."""
    for entry in [] if path is None else read_entries(path, "interaction", what=YAML_KEY):
        _check(entry)


def _check(entry: Entry) -> ToolOptions:
    check_keys(entry.fields, ENTRY_KEYS, entry.where)
    return _check_class(entry, entry.load_class())


def _check_class(entry: Entry, kind: type) -> ToolOptions:
    """Check a class and its `config`; returns `config.timeout` and `config.in_thread`. Raises UserError."""
    if inherits(kind, "BaseInteraction.generate_response"):
        raise UserError(f"{entry.where}: {entry.class_name} has no generate_response(): write `{RESPOND}`")
    check_method(kind, "generate_response", ("instance_id", "messages"), entry.where, RESPOND)
    for method in ("start_interaction", "calculate_score", "finalize_interaction"):
        given = ("instance_id",) if method == "start_interaction" else ()  # verl's base class gives the others none
        example = f"async def {method}(self, instance_id, **kwargs)"
        check_method(kind, method, given, entry.where, example)
    check_answers(getattr(kind, "generate_response", None), entry.where, "(should_terminate, content, score, extra)")
    check_spelling(entry.config, CONFIG_KEYS, entry.where, section="config", kind=kind)
    with reported_as(entry.where):
        return ToolOptions.read({key: entry.config[key] for key in OPTIONS if key in entry.config})


def _runner(interaction: Any, name: str, entry: Entry, options: ToolOptions) -> MethodRunner:
    check_has(interaction, METHODS, f"{entry.where}: {entry.class_name}", "agentrl.interactions.BaseInteraction")
    return MethodRunner("interaction", name, interaction, METHODS, options)


def _default_name(class_name: str) -> str:
    """`weather.WeatherInteraction` is called weather."""
    simple = class_name.rpartition(".")[2]
    return simple.removesuffix("Interaction").lower() or simple.lower()
