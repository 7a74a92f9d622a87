"""Settings of a program's sessions: the models that names stand for, hooks, and how histories are matched."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.core.errors import InfraError, UserError
from agentrl.core.plugins import load_attribute
from agentrl.core.user_code import UserFunction
from agentrl.gateway.request import Body
from agentrl.http.client import Http
from agentrl.http.refusals import Refused
from agentrl.tools.mcp.spec import with_variables
from agentrl.trajectory.message import Message

SAMPLING = {"temperature": "temperature", "top_p": "top_p", "max_tokens": "max_new_tokens"}
ROLE_KEYS = ("train", "base_url", "model", "api_key", *SAMPLING)
OTHERS = "*"
"""The entry of `models` for all names that have none."""
HOOKS = ("on_request", "on_answer", "matcher")
TIMEOUT = 600.0
"""Seconds of a request to another server, and of a hook."""

Matcher = Callable[[list[Message], Sequence[Sequence[Message]]], tuple[int, int] | None]
"""From the messages of a request that continues no ledger, and the conversations of all ledgers: the number of the one
that it continues, and how many of its messages stand for that one; None: it begins another."""


@dataclass(frozen=True)
class Role:
    """The model that a name in requests stands for."""

    name: str = ""
    train: bool | UserFunction = True
    """Whether its answers are trained on; a function says it of a request's body."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    server: Http | None = None
    """Another server that answers; None: the policy."""
    model: str = ""
    """Its name there."""
    headers: str = ""

    async def trained(self, body: Body) -> bool:
        """Whether the answer to a request is trained on."""
        return self.train if isinstance(self.train, bool) else bool(await self.train.run((body,), {}, timeout=TIMEOUT))

    async def forwarded(self, path: str, body: Body) -> tuple[int, bytes]:
        """Status and answer of the other server. Raises Refused."""
        assert self.server is not None
        try:
            return await self.server.forward(path, {**body, "model": self.model}, self.headers, timeout=TIMEOUT)
        except InfraError as error:
            raise Refused(f"model {self.name}: {error}", "overloaded") from error


@dataclass(frozen=True)
class SessionSettings:
    """What an entry of `agents.yaml` says about its sessions."""

    own_sampling: bool = False
    """Whether the agent's temperature and top_p count."""
    rewards: bool = False
    """Whether the agent may post rewards."""
    models: Mapping[str, Role] = field(default_factory=dict)
    on_request: UserFunction | None = None
    """Gets (body, trajectory), and returns another body, or None."""
    on_answer: UserFunction | None = None
    """Gets (answer, trajectory), and returns another answer, or None."""
    matcher: Matcher | None = None

    def role(self, model: Any) -> Role:
        """The role of a model's name."""
        return self.models.get(str(model)) or self.models.get(OTHERS) or POLICY


POLICY = Role()
USUAL = SessionSettings()


def read_settings(entry: Mapping[str, Any], where: str, folder: Path) -> SessionSettings:
    """The settings of an entry in a file of `folder`. Raises UserError."""
    sampling, rewards, models = (entry.get(key, value) for key, value in READ.items())
    if sampling not in ("run", "agent"):
        raise UserError(f"{where}: sampling={sampling!r}: write run (its settings hold) or agent")
    if not isinstance(rewards, bool) or not isinstance(models, Mapping):
        raise UserError(f"{where}: write true or false after rewards, and a mapping of names after models")
    hooks: dict[str, Any] = {key: function(entry[key], f"{where}: {key}", folder) for key in HOOKS if key in entry}
    matcher = hooks.pop("matcher", None)
    roles = {str(name): _role(str(name), about or {}, f"{where}: models", folder) for name, about in models.items()}
    return SessionSettings(sampling == "agent", rewards, roles, **hooks, matcher=matcher and matcher.fn)


READ: dict[str, Any] = {"sampling": "run", "rewards": False, "models": {}}


def _role(name: str, about: Mapping[str, Any], where: str, folder: Path) -> Role:
    if not isinstance(about, Mapping) or about.keys() - set(ROLE_KEYS):
        raise UserError(f"{where}: {name}: write a mapping with some of {', '.join(ROLE_KEYS)}")
    train, url = about.get("train", True), about.get("base_url")
    train = train if isinstance(train, bool) else function(train, f"{where}: train", folder)
    sampling = {SAMPLING[key]: about[key] for key in SAMPLING if key in about}
    if not all(isinstance(value, int | float) and value >= 0 for value in sampling.values()):
        raise UserError(f"{where}: write numbers after {', '.join(SAMPLING)}")
    key = with_variables(str(about.get("api_key", "none")), where)
    headers = f"authorization: Bearer {key}\r\nx-api-key: {key}\r\nanthropic-version: 2023-06-01\r\n"
    return Role(name, train, sampling, Http(str(url)) if url else None, str(about.get("model", name)), headers)


def function(path: Any, where: str, folder: Path) -> UserFunction:
    """The function `module.name`, whose file may be in `folder`. Raises UserError."""
    module, _, name = str(path).replace(":", ".").rpartition(".")
    own = folder / f"{module.removesuffix('.py')}.py"
    found = load_attribute(str(own) if own.is_file() else module, name, what=where)
    if not callable(found):
        raise UserError(f"{where}: {path} is no function")
    return UserFunction(found, owner=f"agent {name}")
