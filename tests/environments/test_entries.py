"""Bad input: one line that says what is wrong and how to fix it, before a run begins."""

import sys
from pathlib import Path

import pytest

from agentrl.config.schema import Data
from agentrl.core.errors import UserError
from agentrl.environments import open_entry, read_entry
from agentrl.environments.kinds.gymnasium import GymnasiumEnvironment
from agentrl.environments.kinds.textarena import TextArenaGame
from agentrl.environments.opponents import RandomOpponent
from agentrl.environments.own import is_own
from agentrl.environments.rows import environment_rows
from agentrl.environments.spaces import text_of, uncoloured

TROUBLES = {
    "gess": r"did you mean guess\? .*environments.yaml has guess, ",
    "no_kind": r"no_kind: name one kind \(gymnasium, nemo_gym, openenv, textarena, verifiers\) with its id.*has rows",
    "misspelt": r"misspelt: unknown key 'max_step': did you mean max_steps\?",
    "rows": r"rows: rows is 'many'; write a number",
    "none": r"none: rows is 0; write a number above 0",
}
WRITTEN = """
guess: {textarena: GuessTheNumber-v0}
no_kind: {rows: 3}
misspelt: {gymnasium: FrozenLake-v1, max_step: 3}
rows: {gymnasium: FrozenLake-v1, rows: many}
none: {gymnasium: FrozenLake-v1, rows: 0}
refused: {gymnasium: FrozenLake-v1, kwargs: {slippery: false}}
unlike: {gymnasium: "lots.py:Lots"}
"""


@pytest.fixture
def data(tmp_path: Path) -> Data:
    (tmp_path / "environments.yaml").write_text(WRITTEN)
    (tmp_path / "lots.py").write_text(
        "import itertools, os\nclass Lots:\n    def reset(self, seed):\n        return os.urandom(4).hex(), {}\n"
        "    def step(self, action):\n        pass\n"
    )
    return Data(environment_config_path=str(tmp_path / "environments.yaml"))


@pytest.mark.parametrize("name", TROUBLES)
def test_entries(name: str, data: Data) -> None:
    with pytest.raises(UserError, match=TROUBLES[name]):
        environment_rows(name, data=data)


def test_arguments_that_the_environment_refuses(data: Data) -> None:
    with pytest.raises(UserError, match=r"environment refused: TypeError: .*'slippery'"):
        environment_rows("refused", data=data)


def test_a_seed_that_decides_nothing(data: Data) -> None:
    with pytest.raises(UserError, match="environment unlike: two environments with the same seed begin differently"):
        environment_rows("unlike", data=data)


def test_a_kind_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "kind.py").write_text(
        "from agentrl.environments import Observation\nclass Echo:\n"
        "    def __init__(self, id, kwargs, *, folder, word='yes'):\n        self.id, self.word = id, word\n"
        "    def reset(self, seed):\n        return Observation(self.id + self.word)\n"
        "    def step(self, action):\n        return Observation('', done=True)\n    def close(self):\n        pass\n"
    )
    (tmp_path / "e.yaml").write_text(f'quiz: {{"{tmp_path}/kind.py:Echo": "Is it?", word: no}}')
    assert read_entry(str(tmp_path / "e.yaml"), "quiz").options["word"] is False
    assert open_entry(str(tmp_path / "e.yaml"), "quiz").id == "Is it?"


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.environments.own.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"textarena: Chess-v0 needs textarena: run `pip install 'agentrl\[env"):
        TextArenaGame("Chess-v0", {})
    with pytest.raises(UserError, match=r"gymnasium: Taxi-v4 needs gymnasium: run `pip install 'agentrl\[env"):
        GymnasiumEnvironment("Taxi-v4", {})
    assert "textarena" not in sys.modules


def test_sides() -> None:
    with pytest.raises(UserError, match=r"no opponent plays the other sides: set `opponent: random`"):
        TextArenaGame("Chess-v0", {}, players=2)
    with pytest.raises(UserError, match=r"sides is \[2\]: write all, alternate, or numbers from 0 to 1"):
        TextArenaGame("Chess-v0", {}, sides=[2], opponent="random")
    with pytest.raises(UserError, match="`sides: alternate` needs an opponent"):
        TextArenaGame("Chess-v0", {}, sides="alternate")


def test_the_random_opponent_plays_what_is_offered() -> None:
    play = RandomOpponent("0/1")
    assert {play("Such as [9].\nNow [1] or [2].\nYour turn.") for _ in range(20)} == {"[1]", "[2]"}
    with pytest.raises(UserError, match=r"offers no \[actions\]"):
        play("Your turn.")


def test_values_as_text() -> None:
    assert text_of({"place": (1, 2.0), "name": "x"}) == "place: 1, 2\nname: x"
    assert text_of([[1, 2], [3, 4]]) == "[1, 2], [3, 4]"
    assert uncoloured("S\x1b[41mF\x1b[0mH\n\x1b[1mG") == "S[F]H\nG"


def test_ids_and_paths() -> None:
    assert is_own("mine.py:Maze")
    assert is_own("package.module:make")
    assert not any(map(is_own, ("ALE/Pong-v5", "my_module:MyEnv-v0", "You have {0}: {1}", "render")))
