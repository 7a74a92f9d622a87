"""rollout.multi_turn.format=file.py:Class: a parser of the user's own."""

from pathlib import Path

import pytest

from agentrl.chat import Chat
from agentrl.chat.parsers import format_stops, parser_for
from agentrl.config.choices import OPEN
from agentrl.config.validate import check_word
from agentrl.core.errors import UserError
from tests.chat.realia import tokenizer

SOURCE = """
from agentrl.trajectory.message import Call, Parsed

class Shout:
    stops = ("<|im_end|>",)

    def parse(self, text, tools=None):
        if "bad" in text:
            raise ValueError("oops")
        if "none" in text:
            return None
        if not text.startswith("CALL "):
            return Parsed(text)
        arguments = {"x": "\\ud83d"} if "half" in text else {"x": float("inf")} if "far" in text else {"x": 1}
        return Parsed("", [Call("id0", text.split()[1], arguments)])

def shout(text, tools=None):
    return Shout().parse(text)

class Silent:
    pass

class Deaf:
    def parse(self):
        pass

class Later:
    async def parse(self, text, tools=None):
        pass

class Picky:
    def __init__(self, tokenizer):
        pass
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shouting.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("name", ["Shout", "shout"])
def test_it_reads_calls(file: Path, name: str) -> None:
    chat = Chat(tokenizer("qwen"), format=f"{file}:{name}", chat_template="configs/templates/chatml_tools.jinja")
    (call,) = chat.read("CALL f").calls
    assert (call.name, call.arguments, call.id) == ("f", {"x": 1}, "id0")
    assert chat.read("Hello.").message["content"] == "Hello."


def test_a_dotted_path_works(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert [call.name for call in parser_for("shouting.Shout")("CALL f").calls] == ["f"]
    assert [call.name for call in parser_for("shouting:Shout")("CALL f").calls] == ["f"]


def test_its_stop_tokens_count(file: Path) -> None:
    assert format_stops(f"{file}:Shout") == ("<|im_end|>",)
    assert format_stops(f"{file}:shout") == ()


@pytest.mark.parametrize("turn", ["CALL half", "CALL far", "bad", "none"])
def test_what_the_model_wrote_ends_no_run(file: Path, turn: str) -> None:
    (call,) = parser_for(f"{file}:Shout")(turn).calls
    assert call.arguments is None
    assert call.error is not None


def test_its_failures_are_said_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    parser = parser_for(f"{file}:Shout")
    parser("bad")
    parser("bad")
    assert [record.getMessage().partition("failed")[2] for record in caplog.records] == [" on a turn: ValueError: oops"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Silent", "has no method parse: write `def parse(self, text, tools)`"),
        ("Deaf", ".parse cannot be called with (self, text, tools)"),
        ("Later", ".parse is async: write `def parse(self, text, tools)`"),
        ("Picky", "cannot be called with (): missing a required argument: 'tokenizer'"),
        ("Nobody", "has no 'Nobody': it has Shout"),
    ],
)
def test_what_does_not_fit_is_one_line_at_the_start(file: Path, name: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        parser_for(f"{file}:{name}")
    assert says in str(caught.value)
    assert str(caught.value).startswith("rollout.multi_turn.format")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line() -> None:
    with pytest.raises(UserError, match=r"rollout\.multi_turn\.format.*nowhere\.py does not exist"):
        parser_for("nowhere.py:Shout")


def test_the_configuration_takes_a_path() -> None:
    choice = OPEN["rollout.multi_turn.format"]
    assert choice.trouble("my_parser.py:Shout", "k") is None
    assert choice.trouble("package.module.Shout", "k") is None
    assert str(choice.trouble("hermess", "k")).startswith("k=hermess: did you mean hermes? choose ")
    with pytest.raises(UserError, match="choose auto"):
        check_word("trainer.resume_mode", "a.b", ("auto",))
