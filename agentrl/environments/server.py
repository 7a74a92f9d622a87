"""The process behind `EnvironmentProcess`: prepares one entry, then forks a process for each trajectory.

It imports the packages once, so that a trajectory's process starts in milliseconds. A process of its own for each
trajectory keeps what environments share in one process apart: TextArena's games, for one, draw from Python's global
random numbers and seed them. Messages are lines of JSON. `worker` ends all of them with the run.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agentrl.core.errors import InfraError, UserError, located
from agentrl.environments.answers import Observation
from agentrl.environments.entry import EnvironmentEntry
from agentrl.environments.own import fitted, load_own

Answer = dict[str, Any]
Shape = Callable[[Observation], Observation]


def main() -> None:
    """Serve the socket that the second argument names; the first is a file with the entry."""
    with open(sys.argv[1]) as file:
        entry = EnvironmentEntry(**json.load(file))
    os.environ["OMP_NUM_THREADS"] = "1"
    prepare(entry)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended processes leave nothing behind
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{sys.argv[2]}.new")
    listener.listen(2048)
    os.rename(f"{sys.argv[2]}.new", sys.argv[2])  # it is there once it answers
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            serve(entry, connection)
            os._exit(0)
        connection.close()


def prepare(entry: EnvironmentEntry) -> None:
    """Import all that the entry needs. Raises UserError."""
    shape_of(entry)
    entry.make()


def serve(entry: EnvironmentEntry, connection: socket.socket) -> None:
    """One environment: answers `{"reset": seed}` and `{"step": action}` until the connection closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stream = connection.makefile("rwb", buffering=0)
    stream.write(_line({"pid": os.getpid()}))
    shape, environment = shape_of(entry), entry.make()
    for line in stream:
        ((method, value),) = json.loads(line).items()
        stream.write(_line(answered(lambda: shape(getattr(environment, method)(value)).to_json())))  # noqa: B023
    answered(lambda: environment.close() or {})


def shape_of(entry: EnvironmentEntry) -> Shape:
    """The entry's reward function on the rewards of an observation. Raises UserError."""
    if entry.reward is None:
        return lambda observation: observation
    function = load_own(entry.reward, entry.folder, f"environment {entry.name}: reward")

    def shaped(observation: Observation) -> Observation:
        given = {"info": observation.info, "done": observation.done}
        rewards = {s: float(fitted(function, r, side=s, **given)) for s, r in observation.rewards.items()}
        return replace(observation, rewards=rewards)

    return shaped


def answered(work: Callable[[], Answer]) -> Answer:
    """The answer, or what went wrong: environments may raise anything."""
    try:
        return work()
    except UserError as error:
        return {"refused": str(error)}
    except InfraError as error:
        return {"failed": str(error)}
    except (Exception, SystemExit) as error:
        return {"failed": located(error)}


def _line(answer: Answer) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode(errors="replace") + b"\n"


if __name__ == "__main__":
    main()
