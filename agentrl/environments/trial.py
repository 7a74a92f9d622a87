"""Tries an entry in a separate process: prints `{"refused": why}` where it does not work, or `{"warning": text}`."""

import json
import os
import re
import signal
import sys
from typing import Any

from agentrl.environments.entry import EnvironmentEntry
from agentrl.environments.server import Answer, answered, prepare

SAME_SEED_DIFFERS = (
    "two environments with the same seed begin differently, so the samples of a group are not comparable: let the seed "
    "decide, for example by the path of a function of `seed` that makes it"
)
SEEDS_ALIKE = (
    "all of {} seeds that were tried begin and go on alike: if the environment ignores the seed, its {} rows are one "
    "task, so write `rows: 1` or arguments that differ"
)
SEEDS = 8
COMPARISON_SECONDS = 20
"""Seconds for the comparison of seeds."""
WORD = re.compile(r"\[[^\[\]\n]+\]|[\w.+-]+")


def main() -> None:
    """Try the entry in the file that the first argument names."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with open(sys.argv[1]) as file:
        entry = EnvironmentEntry(**json.load(file))
    answer = answered(lambda: _tried(entry))
    if "failed" in answer:
        answer = {"refused": answer["failed"]}
    answers.write(json.dumps(answer))
    answers.flush()
    os._exit(0)


def _tried(entry: EnvironmentEntry) -> Answer:
    prepare(entry)
    first = _beginning(entry, entry.first_seed)
    if _beginning(entry, entry.first_seed) != first:
        return {"refused": SAME_SEED_DIFFERS}
    environment = entry.make()
    if hasattr(environment, "rehearse"):
        environment.rehearse(entry.first_seed)
    return {"warning": SEEDS_ALIKE.format(SEEDS, entry.rows)} if entry.rows > 1 and _alike(entry, first) else {}


def _alike(entry: EnvironmentEntry, first: str) -> bool:
    """Whether all seeds give one task. False where an action that is tried breaks the environment, or takes long."""
    seeds = range(entry.first_seed + 1, entry.first_seed + SEEDS)
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.alarm(COMPARISON_SECONDS)
    try:
        if any(_beginning(entry, seed) != first for seed in seeds):
            return False
        # What the seed decides may be hidden at first.
        actions = [*WORD.findall(first.strip().rpartition("\n")[2])[-3:], "5"]
        begun = _goes_on(entry, entry.first_seed, actions)
        return all(_goes_on(entry, seed, actions) == begun for seed in seeds)
    except Exception:
        return False
    finally:
        signal.alarm(0)


def _time_is_up(*_: Any) -> None:
    raise TimeoutError


def _beginning(entry: EnvironmentEntry, seed: int) -> str:
    return _goes_on(entry, seed, [])[0][0]


def _goes_on(entry: EnvironmentEntry, seed: int, actions: list[str]) -> list[tuple[str, dict[int, float]]]:
    """Texts and rewards of an environment in which these actions are taken."""
    environment = entry.make()
    try:
        seen = [environment.reset(seed)]
        for action in actions:
            if not seen[-1].done:
                seen.append(environment.step(action))
    finally:
        environment.close()
    return [(each.text, each.rewards) for each in seen]


if __name__ == "__main__":
    main()
