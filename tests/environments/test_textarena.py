"""Games of the real TextArena: what the package itself can play without a network, the adapter plays."""

import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from agentrl.core.errors import UserError
from agentrl.environments.kinds.textarena import TextArenaGame

pytestmark = pytest.mark.integration

textarena = pytest.importorskip("textarena")
MOVES = ["[0]", "[1 2 +]", "[A 1]", "[h 0 0]", "[e2e4]", "hello", ""]
FEW = ["Countdown-v0", "Cryptarithm-v0", "Slitherlink-v0", "KuhnPoker-v0", "TicTacToe-v0", "Nim-v0", "Sudoku-v0"]
ALL = sorted(id for id in textarena.envs.registration.ENV_REGISTRY if not id.endswith(("-raw", "-train")))
FAULTS = ("late", "is not over after", "correct `players`")
"""Of games that never end, or take any number of players and then need another."""
LIMIT, STEPS = 10, 40


def guess(text: str, draw: random.Random) -> str:
    """An action as a game may write it."""
    lines = [found for line in text.splitlines() if (found := re.findall(r"\[[^\[\]\n]+\]", line))]
    return draw.choice(lines[-1]) if lines else draw.choice(MOVES)


def rival(text: str) -> str:
    """An opponent."""
    return guess(text, random.Random(len(text)))


def plain(id: str, players: int) -> None:
    """Without the adapter."""
    game, draw = textarena.make(id), random.Random(0)
    game.reset(num_players=players, seed=0)
    for _ in range(STEPS):
        side, _ = game.get_observation()
        assert side < players
        if game.step(action=draw.choice(MOVES))[0]:
            game.close()
            return


def adapted(id: str, players: int, **options: Any) -> None:
    """With the adapter."""
    draw = random.Random(0)
    game = TextArenaGame(id, {}, players=players, **options)
    game.rehearse(0)
    for seed in range(2):
        seen = game.reset(seed)
        for _ in range(STEPS):
            if seen.done:
                assert set(seen.rewards) <= set(game.sides)
                break
            assert (seen.side in game.sides, seen.sides) == (True, game.sides)
            seen = game.step(guess(seen.text, draw))


def apart(work: Callable[[], None]) -> str | None:
    """Why work in a process of its own fails, with the package that failed; None: it does not."""
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout's own would be an error of the work
        signal.alarm(LIMIT)
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
            os.write(theirs, json.dumps(told(work)).encode())
        os._exit(0)
    os.close(theirs)
    with open(ours) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else "late"


def told(work: Callable[[], None]) -> str | None:
    try:
        work()
    except UserError as error:
        return f"refused: {error}"
    except BaseException as error:
        trace, files = error.__traceback__, []
        while trace is not None:
            files.append(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
        whose = "textarena" if "textarena" in Path(files[-1]).parts else "agentrl"
        return f"{whose}: {type(error).__name__}: {error}"[:300]
    return None


def ways(players: int) -> Iterator[dict[str, Any]]:
    """How the policy may play."""
    if players == 1:
        yield {}
        return
    yield {"sides": "all"}
    yield {"sides": "alternate", "opponent": f"{__name__}:rival"}
    yield {"sides": "alternate", "opponent": "random"}


def troubles(id: str) -> Iterator[str]:
    """What the adapter cannot do although the package can."""
    found = (n for n in range(1, 8) if apart(lambda: plain(id, n)) is None)  # noqa: B023
    players = next(found, None)
    for way in ways(players) if players else ():
        trouble = apart(lambda: adapted(id, players, **way))  # noqa: B023
        fits = trouble is None or trouble.startswith("textarena") or any(known in trouble for known in FAULTS)
        if not fits and not (str(trouble).startswith("refused: opponent random: the game ") and "opponent" in way):
            yield f"{id} {way}: {trouble}"


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nltk.download", lambda *args, **kwargs: False)


@pytest.mark.parametrize("id", FEW)
def test_a_game_is_played_in_every_way(id: str) -> None:
    assert apart(lambda: plain(id, 1)) is None or apart(lambda: plain(id, 2)) is None
    assert list(troubles(id)) == []


@pytest.mark.slow
@pytest.mark.parametrize("id", ALL)
def test_all_games_of_the_package_are_played_in_every_way(id: str) -> None:
    assert list(troubles(id)) == []
