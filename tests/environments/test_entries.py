"""Bad input: one line that says what is wrong and how to fix it, before a run begins."""

import sys
from pathlib import Path

import pytest

from agentrl.config.schema import Data
from agentrl.core.errors import InfraError, UserError
from agentrl.environments import open_entry, read_entry
from agentrl.environments.action_text import text_of, uncoloured
from agentrl.environments.kinds.gymnasium import GymnasiumEnvironment
from agentrl.environments.kinds.textarena import RandomOpponent, TextArenaGame
from agentrl.environments.own import is_own
from agentrl.environments.rows import environment_rows

pytestmark = pytest.mark.integration

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
one: {gymnasium: FrozenLake-v1, kwargs: {is_slippery: false}, rows: 200}
hidden: {gymnasium: "lots.py:Hidden"}
"""


@pytest.fixture
def data(tmp_path: Path) -> Data:
    (tmp_path / "environments.yaml").write_text(WRITTEN)
    (tmp_path / "lots.py").write_text(
        "import itertools, os\nclass Lots:\n    def reset(self, seed):\n        return os.urandom(4).hex(), {}\n"
        "    def step(self, action):\n        pass\n"
        "class Hidden:\n    def reset(self, seed):\n        self.seed = seed\n        return 'Guess.', {}\n"
        "    def step(self, action):\n        return str(self.seed), 0.0, False, False, {}\n"
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


def test_seeds_that_are_one_task_are_told_with_their_number(data: Data, caplog: pytest.LogCaptureFixture) -> None:
    environment_rows("one", data=data)
    environment_rows("hidden", data=data)
    (warning,) = caplog.messages
    assert warning.startswith(
        "environment one: all of 8 seeds that were tried begin and go on alike: if the environment"
    )
    assert "its 200 rows are one task" in warning


MIXED = """
from enum import Enum
Kind = Enum("Kind", ["PLAYER_ACTION", "GAME_ADMIN", "PROMPT"])
class Game:
    def __init__(self, how="list"):
        self.how, self.state = how, self
        self.role_mapping = {0: "Me", 1: "You"}
    def reset(self, num_players, seed):
        self.new, self.current_player_id, self.turn = [(-1, "Play.", Kind.PROMPT)], 0, 0
    def get_observation(self):
        offer = {"list": "[a] or [b]", "example": "such as [x]", "none": "", "mixed": "[a]", "broken": "[a]"}[self.how]
        said = [*self.new, (-1, offer, Kind.PROMPT)]
        if self.how == "mixed":
            said.append((Kind.PLAYER_ACTION, 0, "[b]"))  # parts in an order of its own
        self.new = []
        return self.current_player_id, [("x", "y", "z")] if self.how == "broken" else said
    def step(self, action):
        self.turn += 1
        if action in ("[a]", "[b]"):
            self.current_player_id = 1 - self.current_player_id
        else:
            self.new = [(-1, "That is no action.", Kind.GAME_ADMIN)]
        return self.turn == 6, {}
    def close(self):
        return {0: 1, 1: -1}, {0: {}, 1: {}}
"""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("list", None),
        ("mixed", None),
        ("none", r"opponent random: the game offers no \[actions\]: write the path of a function that plays"),
        (
            "example",
            r"opponent random: the game refuses 15 of 18 actions in \[brackets\]: write the path of a function",
        ),
        ("broken", r"the game's message .* is not a sender, a text and its kind"),
    ],
)
def test_a_game_that_random_cannot_play_is_refused_before_the_run(how: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text(MIXED)
    (tmp_path / "e.yaml").write_text(f'game: {{textarena: "game.py:Game", kwargs: {{how: {how}}}, opponent: random}}')
    data = Data(environment_config_path=str(tmp_path / "e.yaml"))
    if message is None:
        assert len(environment_rows("game", data=data)) == 256
        return
    with pytest.raises(UserError, match=message):
        environment_rows("game", data=data)


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
    monkeypatch.delitem(sys.modules, "textarena", raising=False)
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
    assert play("Your turn.") in ("[1]", "[2]")
    with pytest.raises(InfraError, match=r"offers no \[actions\]"):
        RandomOpponent("0/1")("Your turn.")


def test_values_as_text() -> None:
    assert text_of({"place": (1, 2.0), "name": "x"}) == "place: 1, 2\nname: x"
    assert text_of([[1, 2], [3, 4]]) == "[1, 2], [3, 4]"
    assert uncoloured("S\x1b[41mF\x1b[0mH\n\x1b[1mG") == "S[F]H\nG"


def test_ids_and_paths() -> None:
    assert is_own("mine.py:Maze")
    assert is_own("package.module:make")
    assert not any(map(is_own, ("ALE/Pong-v5", "my_module:MyEnv-v0", "You have {0}: {1}", "render")))
