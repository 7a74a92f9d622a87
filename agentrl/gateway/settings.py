"""Settings of a program's sessions: the models that names stand for, hooks, and how histories are matched."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.plugins import load_attribute
from agentrl.core.user_code import UserFunction
from agentrl.gateway.request import Body
from agentrl.http.client import Http
from agentrl.http.serving import MAX_BODY_BYTES
from agentrl.tasks.harbor.fields import Fields
from agentrl.tools.mcp.spec import with_variables
from agentrl.trajectory.message import Message

AGENT_SAMPLING = ("temperature", "top_p")
ROLE_KEYS = ("train", "base_url", "model", "api_key", *AGENT_SAMPLING)
HOOKS = ("on_request", "on_answer", "matcher")
SESSION_KEYS = ("sampling", "rewards", "models", *HOOKS)
TIMEOUT = 600.0  # seconds of a hook, and of a request to another server
Matcher = Callable[[list[Message], Sequence[Sequence[Message]]], tuple[int, int] | None]


@dataclass(frozen=True)
class Role:
    """The model that a name in requests stands for: the policy, or the one that `server` knows as `model`, asked
    with the API key `key`."""

    name: str = ""
    train: bool | UserFunction = True
    sampling: Mapping[str, float] = field(default_factory=dict)
    server: Http | None = None
    model: str = ""
    key: str = ""

    async def trained(self, body: Body) -> bool:
        """Whether the answer to a request is trained on."""
        return self.train if isinstance(self.train, bool) else bool(await self.train.run((body,), {}, timeout=TIMEOUT))


@dataclass(frozen=True)
class SessionSettings:
    """The part of an entry in `agents.yaml` that is about sessions.

    `on_request` gets (body, trajectory), `on_answer` (answer, trajectory): each returns another one, or None. `matcher`
    gets the messages of a request that continues no ledger, and the conversations of all ledgers; it returns the number
    of the one that it continues and how many of its messages stand for that one, or None.
    """

    own_sampling: bool = False
    rewards: bool = False
    models: Mapping[str, Role] = field(default_factory=dict)
    on_request: UserFunction | None = None
    on_answer: UserFunction | None = None
    matcher: Matcher | None = None

    def role(self, model: Any) -> Role:
        """The role of a model's name."""
        return self.models.get(str(model)) or self.models.get("*") or Role()


def read_settings(entry: Mapping[str, Any], where: str, folder: Path) -> SessionSettings:
    """The settings of an entry in a file of `folder`. Raises UserError."""
    sampling, rewards, models = entry.get("sampling", "run"), entry.get("rewards", False), entry.get("models", {})
    if sampling not in ("run", "agent"):
        raise UserError(f"{where}: sampling={sampling!r}: write run (its settings hold) or agent")
    if not isinstance(rewards, bool) or not isinstance(models, Mapping):
        raise UserError(f"{where}: write true or false after rewards, and a mapping of names after models")
    roles = {str(name): _role(str(name), about or {}, f"{where}: models", folder) for name, about in models.items()}
    hooks: dict[str, Any] = {key: function(entry[key], f"{where}: {key}", folder) for key in HOOKS if key in entry}
    if "matcher" in hooks:
        hooks["matcher"] = hooks["matcher"].fn
    return SessionSettings(sampling == "agent", rewards, roles, **hooks)


def _role(name: str, about: Mapping[str, Any], where: str, folder: Path) -> Role:
    if not isinstance(about, Mapping) or about.keys() - set(ROLE_KEYS):
        raise UserError(f"{where}: {name}: write a mapping with some of {', '.join(ROLE_KEYS)}")
    fields, train = Fields(with_variables(dict(about), where), f"{where}: {name}"), about.get("train")
    url, model, key = fields.text("base_url"), fields.text("model"), fields.text("api_key")
    sampling = {each: fields.number(each, 0) for each in AGENT_SAMPLING if about.get(each) is not None}
    needless = (*AGENT_SAMPLING, "train") if url else ("model", "api_key")
    if useless := [each for each in needless if about.get(each) is not None and about[each] is not False]:
        raise UserError(f"{where}: {name}: leave out {useless[0]}: no effect {'with' if url else 'without'} base_url")
    server = Http(url, largest=MAX_BODY_BYTES) if url else None
    trained = train is not False if isinstance(train, bool | None) else function(train, f"{where}: train", folder)
    return Role(name, trained, sampling, server, model or name, key or "")


def function(path: Any, where: str, folder: Path) -> UserFunction:
    """The function `module.name`, whose file may be in `folder`. Raises UserError."""
    module, _, name = str(path).replace(":", ".").rpartition(".")
    if not module:
        raise UserError(f"{where}: {path!r} names no function: write file.function, or module.function")
    own = folder / f"{module.removesuffix('.py')}.py"
    found = load_attribute(str(own) if own.is_file() else module, name, what=where)
    if not callable(found):
        raise UserError(f"{where}: {path} is no function")
    return UserFunction(found, owner=f"agent {name}")
