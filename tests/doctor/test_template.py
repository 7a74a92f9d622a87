"""What the doctor says of real templates, and of templates and formats that do not go together."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from agentrl.chat import Chat
from agentrl.config.schema import Config
from agentrl.core.resources import share
from agentrl.doctor import template
from agentrl.doctor.diagnosis import Diagnosis
from agentrl.doctor.finding import Finding
from tests.chat import realia
from tests.chat.pairs import PAIRS, by_name, chat_for
from tests.chat.realia import tokenizer

PROMPT = [{"role": "user", "content": "What is 3 times 4?"}]
PROPERTIES = {
    "expression": {"type": "string", "description": "what to work out"},
    "digits": {"type": "array", "items": {"type": "integer"}},
    "mode": {"type": "string", "enum": ["exact", "rough"]},
}
SCHEMA = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Works sums out.",
        "parameters": {"type": "object", "properties": PROPERTIES, "required": ["expression", "digits"]},
    },
}


def compact(format: str = "hermes") -> Chat:
    text = (share() / "configs" / "templates" / "chatml_tools_compact.jinja").read_text()
    return Chat(tokenizer("qwen"), format=format, chat_template=text)


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_qwen2_5_is_in_good_health() -> None:
    chat = by_name("qwen2_5")
    found = [
        *template.append_only(chat, PROMPT, [SCHEMA]),
        *template.call_format(chat, None, PROMPT, [SCHEMA]),
        *template.dropped_fields(chat, PROMPT, [SCHEMA]),
    ]
    assert levels(found) == ["ok"] * 6


def test_a_template_that_strips_thinking_is_told_with_the_key_for_it() -> None:
    found = list(template.append_only(by_name("qwen3"), PROMPT, [SCHEMA]))
    assert "warning" in levels(found)
    stripped = next(
        finding for finding in found if finding.text.startswith("the template rewrites") and "thinking" in finding.text
    )
    assert "use_inference_chat_template=true" in stripped.fix


@pytest.mark.parametrize("name", ["llama3_1", "kimi_k2", "mistral_v11"])
def test_real_templates_and_their_formats_read_each_other(name: str) -> None:
    pair = next(pair for pair in PAIRS if pair.template == name)
    found = list(template.call_format(chat_for(pair), pair.format, PROMPT, [SCHEMA]))
    assert levels(found) == ["ok", "ok"]
    assert "calculator: rollout.multi_turn.format=" in found[1].text


def test_a_tool_whose_call_is_not_read_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = by_name("qwen2_5")
    monkeypatch.setattr(chat, "parse", lambda ids, tools: SimpleNamespace(calls=[]))
    found = list(template.call_format(chat, None, PROMPT, [SCHEMA]))
    assert levels(found) == ["ok", "problem"]
    assert "does not read as a call with these arguments" in found[1].text
    assert "model.chat_template=" in found[1].fix


@pytest.mark.parametrize(("wrong", "right"), [("mistral", "hermes"), ("deepseek", "hermes")])
def test_a_format_that_does_not_read_the_templates_calls_names_one_that_does(wrong: str, right: str) -> None:
    chat = Chat(tokenizer("qwen"), format=wrong, chat_template=by_name("qwen2_5").template.source)
    (found,) = template.call_format(chat, wrong, PROMPT, [SCHEMA])
    assert found.level == "problem"
    assert found.fix == f"{right} does: set that, or leave the key out"


def test_fields_that_a_template_drops_are_named() -> None:
    (found,) = template.dropped_fields(compact(), PROMPT, [SCHEMA])
    assert found.level == "warning"
    assert "parameters.properties.expression.description" in found.text
    assert "enum" not in found.text
    assert "parameters.type" not in found.text
    assert " name" not in found.text


def test_a_template_without_tools_is_a_problem() -> None:
    chat = Chat(tokenizer("smollm2"))
    assert levels(list(template.dropped_fields(chat, PROMPT, [SCHEMA]))) == ["problem"]
    (found,) = template.call_format(chat, None, PROMPT, [SCHEMA])
    assert found.level == "problem"
    assert "model.chat_template=" in found.fix
    assert not list(template.call_format(chat, None, PROMPT, []))


NAMES = ["glm4moe", "gptoss", "gemma4_v5", "mistral_v3", "kimi_k2", "cohere2", "idefics3", "lfm2", "muse_glimmer"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", [None, "hermes", "deepseek"])
def test_no_template_stops_the_examination(name: str, format: str | None) -> None:
    family = next((pair.family for pair in PAIRS if pair.template == name), "qwen")
    diagnosis = Diagnosis(Config(), lambda area, finding: None)

    def findings() -> Iterator[Finding]:
        chat = Chat(tokenizer(family), format=format, chat_template=realia.template(name))
        yield from template.append_only(chat, PROMPT, [SCHEMA])
        yield from template.call_format(chat, format, PROMPT, [SCHEMA])
        yield from template.dropped_fields(chat, PROMPT, [SCHEMA])

    diagnosis.note("template", findings())
    assert diagnosis.findings
    assert not any("this check could not run" in finding.fix for finding in diagnosis.findings)


def test_the_format_that_was_found_is_told() -> None:
    (found,) = template.call_format(by_name("glm4moe"), None, PROMPT, [])
    assert (found.level, found.text) == (
        "ok",
        "rollout.multi_turn.format: glm (found by rendering a call with the template)",
    )
    wrong = Chat(tokenizer("qwen"), format="glm", chat_template=by_name("qwen2_5").template.source)
    (found,) = template.call_format(wrong, "glm", PROMPT, [])
    assert found.level == "problem"
    assert "hermes" in f"{found.text} {found.fix}"


def test_a_part_that_raises_is_a_finding_and_the_next_is_looked_at() -> None:
    diagnosis = Diagnosis(Config(), lambda area, finding: None)
    diagnosis.note("tools", (1 / 0 for _ in range(1)))  # type: ignore[misc]
    diagnosis.note("rows", template.call_format(by_name("qwen2_5"), None, PROMPT, []))
    assert levels(diagnosis.findings) == ["problem", "ok"]
