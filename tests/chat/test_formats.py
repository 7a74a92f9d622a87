"""The format and the ends of turns, found out from real templates; and what is said where they do not go together."""

import re
from functools import cache
from types import SimpleNamespace

import pytest
from tokenizers import AddedToken

from agentrl.chat import Chat, formats
from agentrl.chat.formats import FALLBACK
from agentrl.core.errors import UserError
from agentrl.core.points import PARSERS
from agentrl.rollout.building import check_format
from agentrl.trajectory.ledger import Source
from agentrl.trajectory.message import Parsed
from tests.chat import realia
from tests.chat.call_forms import FORMAT_OF, JSON_FORMS, SPELLED_FORMS
from tests.chat.conversations import TOOLS, result, user
from tests.chat.pairs import PAIRS, Pair
from tests.chat.realia import template, tokenizer

CALLING = [pair for pair in PAIRS if (pair.template and "parallel" not in pair.refused) or "llama3_" in pair.name]
FORMS = {
    name: form for name, form in (JSON_FORMS | SPELLED_FORMS).items() if name not in ("llama3_json", "functionary")
}
"""The other two write nothing that tells a call from text."""
SILENT = ["llama3", "gemma3", "phi3_5", "cohere2"]
OTHERS = {
    "qwen3_6": "qwen3_coder",
    "qwen3_8": "qwen3_coder",
    "nemotron_3_super": "qwen3_coder",
    "nemotron_3_5_lightning": "qwen3_coder",
    "qwen3_vl": "hermes",
}


@cache
def every_form() -> object:
    """One vocabulary with the control tokens of all forms."""
    return dressed(wearing("".join(FORMS.values()), "<|calls|>"), "<|im_end|>")


def wearing(form: str, end: str = "<|im_end|>") -> str:
    """ChatML whose turns with calls are written in a form, and end with `end`."""
    return (
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{{ m.content or '' }}"
        "{%- set calls = m.tool_calls | map(attribute='function') | list %}" + form + end + "{% else %}{{ m.content }}"
        "<|im_end|>{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def dressed(text: str, eos: str) -> object:
    """A real vocabulary with the control tokens that a template writes."""
    made = realia._deepseek()
    control = sorted(set(re.findall(r'<\|[\w"]+\|?>|<[\w"]+\|>', text)))
    made.add_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    made.eos_token = eos
    return made


def ends(chat: Chat) -> set[str]:
    return {chat.template.added_tokens[i] for i in chat.stop_token_ids}


@pytest.mark.parametrize("pair", CALLING, ids=lambda pair: pair.name)
def test_the_format_is_that_of_the_templates_own_calls(pair: Pair) -> None:
    chat = Chat(tokenizer(pair.family), chat_template=template(pair.template or ""))
    assert PARSERS[chat.format] is PARSERS[pair.format]
    assert chat.unread() is None


@pytest.mark.parametrize("name", OTHERS)
def test_templates_that_no_pair_has(name: str) -> None:
    assert Chat(tokenizer("qwen"), chat_template=template(name)).format == OTHERS[name]


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_calls_is_known_by_its_parser(form: str) -> None:
    wanted = FORMAT_OF.get(form, form)
    chat = Chat(every_form(), chat_template=wearing(FORMS[form]))
    assert chat.format == wanted, chat.readers


def test_a_turn_with_calls_ends_where_the_template_ends_it() -> None:
    chat = Chat(every_form(), chat_template=wearing(JSON_FORMS["solar"], "<|calls|>"))
    assert chat.format == "solar"
    assert ends(chat) >= {"<|calls|>", "<|im_end|>"}


def test_a_form_that_nobody_reads_stops_a_run_with_tools(caplog: pytest.LogCaptureFixture) -> None:
    source = wearing("{% for call in calls %}!!{{ call.name }}!{{ call.arguments | tojson }}!!{% endfor %}")
    chat = Chat(every_form(), chat_template=source)
    assert (chat.format, chat.readers) == (FALLBACK, [])
    env = SimpleNamespace(chat=chat, tools=TOOLS)
    with pytest.raises(UserError, match="no format reads the calls that this chat template writes; write a parser"):
        check_format(env, None)  # type: ignore[arg-type]
    check_format(env, "hermes")  # type: ignore[arg-type]
    assert "no format reads the calls" in caplog.text
    check_format(SimpleNamespace(chat=chat, tools=[]), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SILENT)
def test_a_template_without_calls_gets_the_fallback(name: str) -> None:
    family = next(pair.family for pair in PAIRS if pair.template == name)
    chat = Chat(tokenizer(family), chat_template=template(name))
    assert (chat.format, chat.readers) == (FALLBACK, [])
    assert "shows no tool calls" in str(chat.unread())


def test_a_format_that_does_not_read_the_templates_calls_wins_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(tokenizer("qwen"), chat_template=template("qwen3_5_think"), format="hermes")
    assert chat.format == "hermes"
    env = SimpleNamespace(chat=chat, tools=TOOLS)
    check_format(env, "hermes")  # type: ignore[arg-type]
    assert "format=hermes does not read the calls" in caplog.text
    assert "qwen3_coder does" in caplog.text
    caplog.clear()
    check_format(SimpleNamespace(chat=chat, tools=[]), "hermes")  # type: ignore[arg-type]
    assert not caplog.text


def test_of_several_that_fit_the_one_that_reads_more_wins_then_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    hermes = PARSERS["hermes"]

    def first_only(text: str, tools: object = None) -> Parsed:
        parsed = hermes(text, tools)
        return Parsed(parsed.content, parsed.calls[:1])

    order = {"poor": first_only, "good": hermes, "same": lambda *a: hermes(*a)}
    chat = Chat(tokenizer("qwen"), chat_template=template("qwen2_5"))
    monkeypatch.setattr(formats, "built_in_parsers", order.items)
    assert formats.readers(chat.template) == ["good", "same", "poor"]


@pytest.mark.parametrize("name", ["gemma4", "gemma4_v3", "gemma4_v5"])
def test_gemma_4_ends_a_turn_with_calls_where_the_tools_response_begins(
    name: str,
) -> None:
    chat = Chat(dressed(template(name), "<turn|>"), chat_template=template(name))
    assert chat.format == "gemma4"
    assert {"<turn|>", "<|tool_response>"} <= ends(chat)
    made = '<|tool_call>call:calculate{expression:<|"|>2+2<|"|>}<tool_call|><|tool_response>'
    ids = chat.template.encode(made)
    reply = chat.parse(ids, TOOLS)
    assert reply.closed
    assert [call.name for call in reply.calls] == ["calculate"]
    segments = chat.observation([result("4")], closed=True, last=ids[-1])
    shown = "".join(chat.decode(segment) for _, segment in segments)
    assert shown.startswith("response:calculate{value:")
    assert "4" in shown
    assert all(source is not Source.MODEL for source, _ in segments)


def test_the_models_own_stop_tokens_count() -> None:
    made = tokenizer("llama3")
    (eom,) = made.encode("<|eom_id|>", add_special_tokens=False)
    plain = Chat(made, chat_template=template("llama3"))
    chat = Chat(made, chat_template=template("llama3"), stop_token_ids=(eom, 10**7))
    assert ends(chat) - ends(plain) == {"<|eom_id|>"}
    ids = [*chat.template.encode("Hi."), eom]
    assert chat.parse(ids).closed
    assert not plain.parse(ids).closed
    after = chat.observation([user("x")], closed=True, last=eom)
    assert chat.decode(after[0][1]).startswith("<|start_header_id|>")
