"""The entries of `environments.yaml`: a name, a kind with its id, and settings."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from agentrl.core.contracts import keywords_of
from agentrl.core.errors import UserError, did_you_mean, reported_as
from agentrl.core.foreign import read_yaml
from agentrl.core.plugin_checks import check_keys
from agentrl.core.points import ENVIRONMENT_KINDS, brings_rows, runs_the_model
from agentrl.core.resources import find, read_text
from agentrl.environments.own import is_own
from agentrl.trajectory.row import Row

KEY = "data.environment_config_path"
EXAMPLE = "`guess: {textarena: GuessTheNumber-v0}`"
STEP = 60.0
"""Seconds for a reset or a step, where the entry says nothing."""


@dataclass(frozen=True)
class EnvironmentEntry:
    """An environment by its name."""

    name: str
    kind: str
    """A name in ENVIRONMENT_KINDS."""
    id: str
    """The environment's id, or `file.py:name` of a class or function of the user's own that makes it."""
    folder: str = "."
    """Folder of the YAML file; paths are relative to it."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keywords of the kind."""
    rows: int = 256
    """Training rows: seeds from `first_seed` on."""
    val_rows: int = 64
    """Held-out rows: the seeds after those."""
    first_seed: int = 0
    """The first seed, or the number of the first task."""
    system: str | None = None
    """System prompt."""
    max_steps: int | None = None
    """Most steps of a trajectory, over all sides."""
    timeout: float | None = None
    """Seconds for a reset, a step or a request, 60 by default; or for a rollout that the environment runs."""
    reward: str | None = None
    """Function of a step's reward that gives the one to use: `file.py:name`."""
    success_at: float = 1.0
    """Return from which a trajectory is a success."""
    invalid_reward: float = 0.0
    """Reward of an invalid action."""
    unfinished_reward: float | None = None
    """Reward of a side that has no tokens left, or only writes invalid actions; None: the kind's own."""

    @property
    def unfinished(self) -> float:
        """The reward of a side that cannot go on."""
        if self.unfinished_reward is not None:
            return self.unfinished_reward
        return float(ENVIRONMENT_KINDS.mark(self.kind, "unfinished", KEY) or 0.0)

    @property
    def step_timeout(self) -> float:
        """Seconds for a reset or a step."""
        return STEP if self.timeout is None else self.timeout

    def make(self) -> Any:
        """An environment. Raises UserError."""
        return ENVIRONMENT_KINDS.make(self.kind, f"environment {self.name}", self.id, self.kwargs, **self.options)

    def metrics(self, total: float) -> dict[str, float]:
        """A trajectory's return, and whether it is a success."""
        return {"return": total, "success": float(total >= self.success_at)}

    def to_json(self) -> dict[str, Any]:
        """For rows, and for other processes."""
        return asdict(self)


COMMON = {f.name: f for f in fields(EnvironmentEntry) if f.name not in ("name", "kind", "id", "folder", "options")}
OF_A_STEP = ("system", "max_steps", "reward", "invalid_reward", "unfinished_reward")
"""Keys of environments that are stepped."""
OF_A_SEED = ("rows", "val_rows", "first_seed")
"""Keys of environments that are made of numbers."""
NUMBERS = [f.name for f in COMMON.values() if f.type in (int, float, int | None, float | None)]


def entry_of(row: Row) -> EnvironmentEntry:
    """The entry of a row."""
    return EnvironmentEntry(**row.extra_info["environment"])


def read_entry(path: str, name: str) -> EnvironmentEntry:
    """The entry of that name. Raises UserError."""
    file = find(path, what=KEY)
    with reported_as(str(file)):
        content = read_yaml(read_text(file))
    if not isinstance(content, dict) or not content:
        raise UserError(f"{file}: write an environment a name, such as {EXAMPLE}")
    if name not in content:
        guess = did_you_mean(name, map(str, content))
        raise UserError(f"env:{name}: {guess}{file} has {', '.join(map(str, content))}")
    return _entry(name, content[name], file)


def _entry(name: str, written: Any, file: Path) -> EnvironmentEntry:
    where = f"{file}: {name}"
    if not isinstance(written, dict):
        raise UserError(f"{where}: write its kind and id, such as {EXAMPLE}")
    kinds = [key for key in written if key in ENVIRONMENT_KINDS or is_own(str(key))]
    if len(kinds) != 1:
        known = ", ".join(ENVIRONMENT_KINDS)
        found = f"it has {' and '.join(kinds)}" if kinds else f"it has {', '.join(map(str, written)) or 'nothing'}"
        raise UserError(f"{where}: name one kind ({known}) with its id, such as {EXAMPLE}; {found}")
    kind = kinds[0]
    if not isinstance(written[kind], str):
        raise UserError(f"{where}: {kind} is {written[kind]!r}; write the environment's id")
    rest = {key: value for key, value in written.items() if key != kind}
    found = ENVIRONMENT_KINDS.get(kind, where)
    left_out: tuple[str, ...] = OF_A_STEP if runs_the_model(found) else ()
    if brings_rows(found):
        left_out = (*OF_A_SEED, *(key for key in OF_A_STEP if key != "max_steps"))
    options = keywords_of(found) - {"id", "kwargs", "folder"}
    _check(rest, {*COMMON, *options} - {*left_out}, where)
    common = {key: value for key, value in rest.items() if key in COMMON}
    others = {key: value for key, value in rest.items() if key not in COMMON}
    folder = str(file.resolve().parent)
    return EnvironmentEntry(name, kind, written[kind], folder, options={**others, "folder": folder}, **common)


def _check(written: dict[str, Any], known: set[str], where: str) -> None:
    """Raises UserError for unknown keys, and for values of a wrong type."""
    check_keys(written, sorted(known), where)
    if not isinstance(written.get("kwargs", {}), dict):
        raise UserError(f"{where}: kwargs is {written['kwargs']!r}; write the environment's arguments, name: value")
    for key in NUMBERS:
        value = written.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{where}: {key} is {value!r}; write a number")
    for key in ("rows", "timeout", "max_steps"):
        if written.get(key, 1) <= 0:
            raise UserError(f"{where}: {key} is {written[key]}; write a number above 0")
