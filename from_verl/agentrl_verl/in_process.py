"""Ray's actors within this process, for tools written for verl that keep a pool of them: threads, and no cluster.

verl's tools wrap each call in an actor, for Ray to limit how many run at once. Here a tool's calls are limited by its
rollout worker, so a thread does the same work without a second process, pickled arguments or an installed Ray. Limits
that actors keep hold within one rollout worker. What is not here comes from Ray itself, where it is installed.
"""

import asyncio
import importlib
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.threads import DaemonThreads

THREADS = DaemonThreads()
MISSING = "a tool asks for {}, which takes Ray itself: pip install 'agentrl[ray]'"


class Reference(Future[Any]):
    """What `.remote()` gives: to be awaited, or asked for with `get`."""

    def future(self) -> Future[Any]:
        """Return the reference itself."""
        return self

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()


def started(function: Callable[..., Any], limit: threading.Semaphore | None, args: Any, kwargs: Any) -> Reference:
    """Run `function` in a thread, when `limit` has room."""
    reference = Reference()

    def work() -> None:
        with limit or nullcontext():
            try:
                value = function(*map(_value, args), **{name: _value(arg) for name, arg in kwargs.items()})
                reference.set_result(asyncio.run(value) if asyncio.iscoroutine(value) else value)
            except BaseException as error:
                reference.set_exception(error)

    THREADS.run(work)
    return reference


def _value(given: Any) -> Any:
    return given.result() if isinstance(given, Reference) else given


class RemoteMethod:
    """A function, or an actor's method, with `.remote`."""

    def __init__(self, function: Callable[..., Any], limit: threading.Semaphore | None = None) -> None:
        self._function, self._limit = function, limit

    def remote(self, *args: Any, **kwargs: Any) -> Reference:
        """Start it."""
        return started(self._function, self._limit, args, kwargs)

    def options(self, **_: Any) -> "RemoteMethod":
        """Where it runs is no choice here."""
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class Actor:
    """An object whose methods run in threads: at most `max_concurrency` of each concurrency group at once."""

    def __init__(self, target: Any, groups: dict[str, int], max_concurrency: int) -> None:
        self._target = target
        self._limits = {name: threading.Semaphore(most) for name, most in groups.items()}
        self._limits[""] = threading.Semaphore(max_concurrency)

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("__"):
            raise AttributeError(name)
        method = getattr(self._target, name)
        return RemoteMethod(method, self._limits[getattr(method, "concurrency_group", "")])


class ActorClass:
    """A class with `.remote`."""

    def __init__(self, kind: type, **options: Any) -> None:
        self._kind, self._options = kind, options

    def options(self, **options: Any) -> "ActorClass":
        """The same with other options."""
        return ActorClass(self._kind, **(self._options | options))

    def remote(self, *args: Any, **kwargs: Any) -> Actor:
        """An actor: the one of that `name` with `get_if_exists`, or a new one."""
        name, options = self._options.get("name"), self._options
        if name in ACTORS and options.get("get_if_exists"):
            return ACTORS[name]
        actor = Actor(
            self._kind(*args, **kwargs), options.get("concurrency_groups") or {}, options.get("max_concurrency") or 1
        )
        if name is not None:
            ACTORS[name] = actor
        return actor


ACTORS: dict[str, Actor] = {}
"""By name."""


def remote(*args: Any, **options: Any) -> Any:
    """`ray.remote`, as a decorator with or without options."""
    if args:
        (target,) = args
        return ActorClass(target, **options) if isinstance(target, type) else RemoteMethod(target)
    return lambda target: remote(target, **options)


def method(concurrency_group: str = "", **_: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`ray.method`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        vars(function)["concurrency_group"] = concurrency_group
        return function

    return decorate


def get(references: Any, *, timeout: float | None = None) -> Any:
    """`ray.get`: values of one reference, or of a list."""
    if isinstance(references, Reference):
        return references.result(timeout)
    return [get(reference, timeout=timeout) for reference in references]


def put(value: Any) -> Reference:
    """`ray.put`."""
    reference = Reference()
    reference.set_result(value)
    return reference


def wait(
    references: list[Reference], *, num_returns: int = 1, timeout: float | None = None, **_: Any
) -> tuple[list[Reference], list[Reference]]:
    """`ray.wait`: (those that are done, the others)."""
    enough = "FIRST_COMPLETED" if num_returns < len(references) else "ALL_COMPLETED"
    wait_for(references, timeout, enough)
    done = [reference for reference in references if reference.done()][:num_returns]
    return done, [reference for reference in references if reference not in done]


def get_actor(name: str, *_: Any, **__: Any) -> Any:
    """`ray.get_actor`: one of this process, else of Ray's."""
    return ACTORS[name] if name in ACTORS else _of_ray("get_actor")(name)


def kill(actor: Actor, **_: Any) -> None:
    """`ray.kill`: its name is free again."""
    for name in [name for name, known in ACTORS.items() if known is actor]:
        del ACTORS[name]


def is_initialized() -> bool:
    """`ray.is_initialized`: there is nothing to initialize."""
    return True


def init(*_: Any, **__: Any) -> None:
    """`ray.init`: does nothing."""


def _of_ray(name: str, module: str = "ray") -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    with _ray_is(REAL):
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError:
            raise UserError(MISSING.format(f"{module}.{name}")) from None


def _stubs() -> dict[str, ModuleType]:
    top, actor = ModuleType("ray"), ModuleType("ray.actor")
    functions = (remote, method, get, put, wait, get_actor, kill, is_initialized, init)
    vars(top).update({function.__name__: function for function in functions}, ObjectRef=Reference)
    vars(top).update(actor=actor, __path__=[], __getattr__=_of_ray)
    vars(actor).update(ActorHandle=Actor, ActorClass=ActorClass)
    others = {name: ModuleType(name) for name in ("ray.exceptions", "ray.util", "ray.util.multiprocessing")}
    for name, module in others.items():
        vars(module).update(__path__=[], __getattr__=partial(_of_ray, module=name))
        setattr(top, name.split(".")[1], others[".".join(name.split(".")[:2])])
    vars(others["ray.exceptions"]).update(GetTimeoutError=TimeoutError, RayError=Exception)
    return {"ray": top, "ray.actor": actor, **others}


STUBS = _stubs()
"""What `import ray` gives to a tool."""
REAL: dict[str, ModuleType] = {}
"""Ray's own modules of these names, once they are imported."""


@contextmanager
def _ray_is(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Within, the names of STUBS mean `modules`, or are not imported yet."""
    before = _taken_out()
    sys.modules.update(modules)
    try:
        yield
    finally:
        _taken_out()
        sys.modules.update(before or REAL)


def _taken_out() -> dict[str, ModuleType]:
    """The modules that have the names of STUBS; Ray's own are kept in REAL."""
    taken = {name: sys.modules.pop(name) for name in STUBS if name in sys.modules}
    if taken.get("ray") is not STUBS["ray"]:
        REAL.update(taken)
    return taken


def actors_in_process() -> AbstractContextManager[None]:
    """Within, `import ray` gives this module's; whoever imported Ray before keeps it."""
    return _ray_is(STUBS)
