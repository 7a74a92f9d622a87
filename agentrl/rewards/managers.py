"""Managers call a reward function: per trajectory, or once for all trajectories.

A manager takes the function's arguments for one trajectory and returns its result. It raises TimeoutError, InfraError,
and the function's own exceptions.
"""

import asyncio
import logging
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from agentrl.config.choices import REWARD_MANAGERS
from agentrl.config.schema.reward import Reward, RewardModel
from agentrl.core.compatibility import layers
from agentrl.core.errors import InfraError, UserError
from agentrl.core.extensions import load_plugins
from agentrl.core.isolated import IsolatedFunction, NotThere
from agentrl.core.plugins import load_attribute
from agentrl.core.shares import share_of
from agentrl.core.tasks import Tasks
from agentrl.core.user_code import UserFunction
from agentrl.rewards.function import PLURALS, RewardFn

log = logging.getLogger(__name__)

SECTION = "reward.reward_manager"
NAME_IT = "put the function into a file and set reward.custom_reward_function.path, which gives it a process of its own"
Arguments = Mapping[str, Any]
Arrange = Callable[[Sequence[Arguments]], dict[str, Any]]


class Manager:
    """Calls one reward function."""

    async def __call__(self, given: Arguments, key: str = "") -> Any:
        """The function's result for the trajectory `key`."""
        raise NotImplementedError

    def expect(self, keys: Sequence[str]) -> None:
        """Announce trajectories that are scored together: each is called or skipped, in any order."""

    def skip(self, key: str) -> None:
        """Replaces an expected call whose trajectory failed."""

    async def close(self) -> None:
        """Stop all calls."""


class Calls:
    """Calls of one function: in processes that can be killed, or here (see `_isolated`), a plain function in a thread
    and an async one as a task. A call whose arguments cannot be sent to a process is made here, too."""

    def __init__(self, fn: RewardFn, timeout: float | None, at_once: int, *, required: bool = False) -> None:
        """`at_once`: number of processes. `required`: raise InfraError rather than call the function here."""
        self.function, self.timeout = UserFunction(fn.function, owner="the reward function"), timeout
        self.function.interrupts = True
        self.required = required
        self.isolated = _isolated(fn, timeout, at_once, required=required)
        self._remote = None if self.isolated is None else UserFunction(self.isolated.call)

    async def __call__(self, given: Arguments) -> Any:
        packed = None if self.isolated is None else self._packed(given)
        if packed is not None and self._remote is not None:
            try:
                return await self._remote.run((packed,), {}, timeout=None)
            except NotThere as error:
                if self.required:
                    raise
                if self.isolated is not None:
                    log.warning("the reward function runs in a thread, which cannot be killed: %s", error)
                self.isolated = None
        try:
            return await self.function.run((), given, timeout=self.timeout)
        except ValueError as error:
            if "main thread" in str(error):  # of `signal`
                raise InfraError(f"{error}: {NAME_IT}") from error
            raise

    def warm(self) -> None:
        """Prepare the first call."""
        if self.isolated is not None:
            self.function.workers.run(self.isolated.warm)

    def close(self) -> None:
        """End the processes."""
        if self.isolated is not None:
            self.isolated.close()

    def _packed(self, given: Arguments) -> bytes | None:
        """None for arguments that stay here, such as a container."""
        try:
            return pickle.dumps(dict(given))
        except Exception as error:  # objects of the user's
            if self.required:
                raise InfraError(f"its arguments cannot be sent to another process: {error}") from error
            return None


class EachManager(Manager):
    """One call per trajectory, `num_workers` at once."""

    def __init__(self, calls: Calls, *, num_workers: int) -> None:
        self.calls = calls
        self._slots = asyncio.Semaphore(num_workers)

    async def __call__(self, given: Arguments, key: str = "") -> Any:
        async with self._slots:
            return await self.calls(given)

    def expect(self, keys: Sequence[str]) -> None:
        """Have a process ready."""
        self.calls.warm()

    async def close(self) -> None:
        self.calls.close()


@dataclass(eq=False)
class SharedCall:
    """Trajectories that are scored in one call."""

    keys: Sequence[str]
    left: int
    waiting: list[tuple[Arguments, "asyncio.Future[Any]"]] = field(default_factory=list)


class BatchManager(Manager):
    """One call for the trajectories that are expected together; it returns a list.

    Invariant: a call waits for its own trajectories, never for those of a concurrent batch.
    """

    def __init__(self, calls: Calls, arrange: Arrange) -> None:
        """`arrange` makes the call's keyword arguments from the arguments of each trajectory."""
        self.calls, self.arrange = calls, arrange
        self._expected: dict[str, SharedCall] = {}
        self._tasks = Tasks()

    async def __call__(self, given: Arguments, key: str = "") -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._together(key).waiting.append((given, answer))
        self.skip(key)
        return await answer

    def expect(self, keys: Sequence[str]) -> None:
        self.calls.warm()
        self._expected |= dict.fromkeys(keys, SharedCall(keys, len(keys)))

    def skip(self, key: str) -> None:
        together = self._together(key)
        together.left -= 1
        if together.left > 0:
            return
        for each in together.keys:
            self._expected.pop(each, None)
        if together.waiting:
            self._tasks.start(self._answer(together.waiting))

    async def close(self) -> None:
        self.calls.close()

    def _together(self, key: str) -> SharedCall:
        """The call that has this trajectory; a new one for a trajectory that was not announced."""
        return self._expected.setdefault(key, SharedCall([key], 1))

    async def _answer(self, waiting: Sequence[tuple[Arguments, "asyncio.Future[Any]"]]) -> None:
        try:
            arguments = self.arrange([given for given, _ in waiting])
            result = await self.calls(arguments)
            if not isinstance(result, Sequence) or len(result) != len(waiting):
                what = f"{len(result)} values" if isinstance(result, Sequence) else f"a {type(result).__name__}"
                raise InfraError(f"it returned {what} for {len(waiting)} trajectories; it must be a list")
        except Exception as error:  # the user's code may raise anything; every waiting call gets it
            for answer in (answer for _, answer in waiting if not answer.done()):
                answer.set_exception(error)
            return
        for (_, answer), value in zip(waiting, result, strict=True):
            if not answer.done():
                answer.set_result(value)


def manager_for(reward: Reward, fn: RewardFn, name: str | None = None) -> Manager:
    """The manager `name`, by default `reward.reward_manager.name`. A function that asks for the sandbox is not timed:
    its programs are, and a wait for their turn is no failure. Raises UserError."""
    name = name or reward.reward_manager.name
    num_workers = share_of(reward.num_workers, "reward.num_workers")
    timed = None if "sandbox" in fn.accepted else reward.timeout
    if name == "batch":
        return BatchManager(Calls(fn, timed, num_workers), partial(_columns, fn.kwargs))
    trouble = ""
    if "sandbox" in fn.accepted:
        trouble = f"{fn.name} asks for `sandbox`, which other processes cannot share;"
    elif not fn.origin[0]:
        trouble = f"other processes cannot import {fn.name}; put it in a Python file and name that, or"
    if name == "prime" and trouble:
        raise UserError(f"{SECTION}.name=prime: {trouble} set {SECTION}.name=naive")
    calls = Calls(fn, timed, num_workers, required=name == "prime")
    return EachManager(calls, num_workers=num_workers)


def _isolated(fn: RewardFn, timeout: float | None, at_once: int, *, required: bool) -> IsolatedFunction | None:
    """The function in separate processes. None where it stays in this one: no time limit holds for it, no other process
    can load it, a program passed it as an object, it is async, or its module has loaded a network."""
    known = bool(fn.origin[0]) and not fn.shared
    stays = timeout is None or not known or iscoroutinefunction(fn.function) or _has_network(fn.function)
    return None if stays and not required else IsolatedFunction(*fn.origin, timeout=timeout or 0.0, at_once=at_once)


def _has_network(function: Callable[..., Any]) -> bool:
    """Whether the function's module has loaded a network, of which another process would load a copy."""
    torch = sys.modules.get("torch")
    found = getattr(function, "__globals__", {}).values()
    return torch is not None and any(
        isinstance(getattr(value, "__dict__", {}).get("model", value), torch.nn.Module) for value in found
    )


def _columns(kwargs: Mapping[str, Any], given: Sequence[Arguments]) -> dict[str, Any]:
    """A list for each argument, and `reward_kwargs`."""
    return {PLURALS[key]: [each[key] for each in given] for key in given[0] if key in PLURALS} | dict(kwargs)


def takes_lists(reward: Reward) -> bool | None:
    """Whether the manager calls the reward function with lists; None: it is a class of the user's own."""
    manager = reward.reward_manager
    return None if manager.module.path is not None or manager.name not in REWARD_MANAGERS else manager.name == "batch"


def server_arguments(reward_model: RewardModel, tokenizer: Any = None) -> dict[str, Any]:
    """Arguments of a function or manager that asks a generative reward model: host:port, and the model's tokenizer."""
    if not reward_model.enable or reward_model.url is None:
        return {}
    address = reward_model.url.rpartition("://")[2].rstrip("/").removesuffix("/v1")
    return {"reward_router_address": address, "reward_model_tokenizer": tokenizer}


def manager_class(name: str, path: str | None) -> type | None:
    """The class that the settings name, in the file `path`; None when `name` is one of REWARD_MANAGERS. Raises
    UserError."""
    if path is not None:
        found = load_attribute(path, name, what=SECTION, section=True)
        if not isinstance(found, type):
            raise UserError(f"{SECTION}.name: {name} in {path} is no class")
        return found
    if name in REWARD_MANAGERS:
        return None
    load_plugins()
    registered = {name: kind for layer in layers() for name, kind in layer.reward_managers().items()}
    if name not in registered:
        raise UserError(
            f"{SECTION}.name={name}: no such manager; use {', '.join((*REWARD_MANAGERS, *registered))}, a name that "
            f"model.external_lib registers, or a class of your own with {SECTION}.module.path"
        )
    return registered[name]


def custom_manager(
    kind: type, function: RewardFn | None, config: Any, tokenizer: Any, offered: Mapping[str, Any]
) -> Manager:
    """The manager that calls an object of the user's class `kind`; `offered`: further arguments of its constructor.
    Raises UserError."""
    made = (layer.reward_manager(kind, function, config, tokenizer, offered) for layer in layers())
    found: Manager | None = next(filter(None, made), None)
    if found is None:
        raise UserError(f"{SECTION}.name: {kind.__name__} is not a reward manager that agentrl can call")
    return found
