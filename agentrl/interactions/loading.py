"""Interactions from YAML, as in verl 0.5 to 0.7, and the set of them that a run uses."""

from collections.abc import Iterable, Mapping
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.plugin_checks import check_answers, check_keys, check_method, check_spelling, inherits
from agentrl.core.plugins import Entry, read_entries
from agentrl.core.user_code import Cleanup
from agentrl.core.user_errors import reported_as
from agentrl.interactions.session import METHODS, InteractionRunner, InteractionSession
from agentrl.tools.options import check_in_thread, check_timeout

YAML_KEY = "rollout.multi_turn.interaction_config_path"
RESPOND = "async def generate_response(self, instance_id, messages, **kwargs)"
ENTRY_KEYS = ("name", "class_name", "config")
READ = ("name", "timeout", "in_thread")
"""Keys of `config` that agentrl reads."""
DEFAULT_TIMEOUT = 60.0
"""Seconds for each call of a method, unless `config.timeout` says otherwise."""


class InteractionSet:
    """The interactions by name. Empty (and false) is fine. Belongs to one event loop."""

    def __init__(self, runners: Iterable[InteractionRunner]) -> None:
        self.runners = {runner.name: runner for runner in runners}
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

    def _runner(self, name: str | None, key: str) -> InteractionRunner:
        if name is None and len(self.runners) == 1:
            return next(iter(self.runners.values()))
        if name in self.runners:
            return self.runners[name]
        names = ", ".join(self.runners) or f"none, set {YAML_KEY}"
        asked = "has no name" if name is None else f"names {name!r}"
        raise UserError(f"trajectory {key}: extra_info.interaction_kwargs {asked}: name one of those loaded ({names})")


def load_interactions(path: str | None) -> InteractionSet:
    """The interactions that a YAML file lists; None gives an empty set. Raises UserError."""
    entries = [] if path is None else read_entries(path, "interaction", what=YAML_KEY)
    runners: dict[str, InteractionRunner] = {}
    for entry in entries:
        runner = _make_runner(entry)
        if runner.name in runners:
            raise UserError(f"{entry.where}: an interaction named {runner.name!r} is listed already: rename one")
        runners[runner.name] = runner
    return InteractionSet(runners.values())


def check_interactions(path: str | None) -> None:
    """What can be wrong with a run's interactions before one is made. Raises UserError."""
    for entry in [] if path is None else read_entries(path, "interaction", what=YAML_KEY):
        _check(entry)


def _check(entry: Entry) -> None:
    check_keys(entry.fields, ENTRY_KEYS, entry.where)
    kind = entry.load_class()
    if inherits(kind, "BaseInteraction.generate_response"):
        raise UserError(f"{entry.where}: {entry.class_name} has no generate_response(): write `{RESPOND}`")
    check_method(kind, "generate_response", ("instance_id", "messages"), entry.where, RESPOND)
    for method in ("start_interaction", "calculate_score", "finalize_interaction"):
        example = f"async def {method}(self, instance_id, **kwargs)"
        check_method(kind, method, ("instance_id",), entry.where, example)
    check_answers(getattr(kind, "generate_response", None), entry.where, "(should_terminate, content, score, extra)")
    check_spelling(entry.config, READ, entry.where, section="config", kind=kind)


def _make_runner(entry: Entry) -> InteractionRunner:
    _check(entry)
    name = entry.fields.get("name") or _default_name(entry.class_name)
    timeout = entry.config.get("timeout", DEFAULT_TIMEOUT)
    in_thread = entry.config.get("in_thread", False)
    with reported_as(entry.where):
        check_timeout(timeout)
        check_in_thread(in_thread)
    interaction = entry.make({**entry.config, "name": name})
    missing = [method for method in METHODS if not callable(getattr(interaction, method, None))]
    if missing:
        raise UserError(
            f"{entry.where}: {entry.class_name} lacks {', '.join(missing)}: "
            "derive it from agentrl.interactions.BaseInteraction"
        )
    return InteractionRunner(name, interaction, timeout, in_thread=in_thread)


def _default_name(class_name: str) -> str:
    """`weather.WeatherInteraction` is called weather."""
    simple = class_name.rpartition(".")[2]
    return simple.removesuffix("Interaction").lower() or simple.lower()
