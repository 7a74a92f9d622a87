"""Checks the chat template and the tool-call format against each other and against training."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl.chat import Chat
from agentrl.chat.chat import FORMAT_KEY, READY_MADE_TEMPLATE
from agentrl.chat.template import TemplateRefusal
from agentrl.core.errors import UserError, shortened
from agentrl.doctor import conversations
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.tools.examples import example_arguments
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.message import Message

Schemas = Sequence[dict[str, Any]]
NEEDLESS = {("strict",), ("parameters", "type")}
"""Parts of a schema that a model does not need: parameters are always an object."""
READY_MADE = f"model.chat_template={READY_MADE_TEMPLATE}"


def append_only(chat: Chat, prompt: Sequence[Message], schemas: Schemas) -> Iterator[Finding]:
    """Check that the template leaves earlier messages unchanged when new ones follow."""
    plain: dict[str, tuple[list[Message], Schemas]] = {"a user's follow-up": (conversations.with_follow_up(prompt), ())}
    if schemas:
        plain["tool calls and results"] = (conversations.with_tools(prompt, schemas), schemas)
    for what, (messages, tools) in plain.items():
        yield _kept(chat, what, messages, tools)
    messages = conversations.with_thought(prompt, field=chat.template.reads_reasoning)
    yield _kept(chat, "thinking", messages, ())


def _kept(chat: Chat, what: str, messages: list[Message], tools: Schemas) -> Finding:
    try:
        ledger = chat.transcript(messages, tools or None)
    except UserError as error:
        return problem(f"{what}: {error}", f"set {READY_MADE} (ChatML models) or a template that shows them")
    mismatch = chat.check_trajectory(messages, ledger.ids, tools or None)
    if mismatch is None:
        return ok(f"append-only with {what}")
    fix = (
        "training uses the tokens that the model saw; to show it the rewritten history instead, set "
        "rollout.multi_turn.use_inference_chat_template=true (a trajectory may then become several samples)"
    )
    return warning(f"the template rewrites history with {what}: {mismatch}", fix)


def call_format(chat: Chat, given: str | None, prompt: Sequence[Message], schemas: Schemas) -> Iterator[Finding]:
    """Report the tool-call format, and check that it reads the calls that the template writes, those of each tool too.

    `given`: the format that is set.
    """
    unread = chat.unread()
    if unread is None:
        how = "set; it reads the template's calls" if given else "found by rendering a call with the template"
        yield ok(f"{FORMAT_KEY}: {chat.format} ({how})")
        yield from (_round_trip(chat, prompt, schema, schemas) for schema in schemas)
    elif schemas or chat.template.shows_tools:
        text, _, fix = unread.rpartition("; ")
        yield (problem if schemas or chat.template.shows_calls else warning)(text, fix)


def _round_trip(chat: Chat, prompt: Sequence[Message], schema: dict[str, Any], schemas: Schemas) -> Finding:
    """Whether the format's parser reads a call of a tool that the template writes."""
    name, wanted = schema["function"]["name"], example_arguments(schema["function"].get("parameters") or {})
    # Ids as templates want them: Mistral's nine letters, and Kimi's, which say which tool is called.
    ids = ("agentrl00", f"functions.{name}:0")
    turns = [_written_turn(chat, prompt, schema, schemas, call_id) for call_id in ids]
    if any(turn and _reads(chat, turn, name, wanted, schemas) for turn in turns):
        return ok(f"{name}: {FORMAT_KEY}={chat.format} reads the calls that the template writes")
    return problem(
        f"{name}: the template writes {shortened(chat.decode(turns[0]), 120)!r}, which {FORMAT_KEY}={chat.format} "
        "does not read as a call with these arguments",
        f"set {READY_MADE} (ChatML models), with {FORMAT_KEY}=hermes",
    )


def _written_turn(
    chat: Chat, prompt: Sequence[Message], schema: dict[str, Any], schemas: Schemas, call_id: str
) -> list[int]:
    """Tokens of the call as the template writes it; empty if the template needs another form of id."""
    messages = conversations.with_tools(prompt, [schema])
    messages[len(prompt)]["tool_calls"][0]["id"] = messages[len(prompt) + 1]["tool_call_id"] = call_id
    try:
        ledger: Ledger = chat.transcript(messages, list(schemas), given=len(prompt))
    except UserError:
        return []
    rows = zip(ledger.ids, ledger.sources, ledger.turns, strict=True)
    return [token for token, source, turn in rows if source == Source.MODEL and turn == 0]


def _reads(chat: Chat, ids: list[int], name: str, arguments: Any, schemas: Schemas) -> bool:
    calls = chat.parse(ids, list(schemas)).calls
    return [(call.name, call.arguments) for call in calls] == [(name, arguments)]


def dropped_fields(chat: Chat, prompt: Sequence[Message], schemas: Schemas) -> Iterator[Finding]:
    """Report the parts of tool schemas that the template leaves out."""
    if not schemas:
        return
    if not chat.template.shows_tools:
        text = "the template does not show tools: the model does not know them"
        yield problem(text, f"set {READY_MADE} (ChatML models) or a template that renders `tools`")
        return
    for schema in schemas:
        function = schema["function"]
        lost = [path for path in _leaves(function) if not _shown(chat, prompt, schema, path)]
        if lost:
            names = ", ".join(dict.fromkeys(".".join(key for key in path if isinstance(key, str)) for path in lost))
            fix = "repeat it in the tool's description, or set a template that renders the whole schema"
            yield warning(f"{function['name']}: the template drops {names}", fix)
        else:
            yield ok(f"{function['name']}: the model sees the whole schema")


def _leaves(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(node, list) and node:
        for index, value in enumerate(node):
            yield from _leaves(value, (*path, index))
    elif path and path not in NEEDLESS and node not in ({}, []):
        yield path


def _shown(chat: Chat, prompt: Sequence[Message], schema: dict[str, Any], path: tuple[str | int, ...]) -> bool:
    """Whether a change of that part changes the prompt."""
    other = copy.deepcopy(schema)
    node = other["function"]
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = _changed(node[path[-1]], path[-1])
    try:
        texts = [chat.template.render(list(prompt), [tool], generation=True) for tool in (schema, other)]
    except TemplateRefusal:
        return True  # the template refuses the changed part: it reads it
    return texts[0] != texts[1]


def _changed(value: Any, key: str | int) -> Any:
    if key == "type":
        return "integer" if value == "string" else "string"
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else f"{value}x"
