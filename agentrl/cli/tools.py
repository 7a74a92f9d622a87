"""`agentrl tools test YAML`: call every tool once before a model uses it.

    agentrl tools test tools/calculator.yaml
    agentrl tools test my.yaml --model models/smollm2 --call search='{"query_list": ["Ada Lovelace"]}'

Shows each schema (with --model, as its chat template renders it), calls the tool with example arguments (--call, else
`config.example` of the YAML, else made up from the schema) and shows the result. A tool that blocks the event loop
fails.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from agentrl.cli.common import terminal
from agentrl.core.errors import UserError
from agentrl.core.resources import find

if TYPE_CHECKING:
    from agentrl.tools import ToolResult, ToolSet

COLOURS = {"ok": "green", "model_error": "yellow", "infra_error": "bold red"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="test")
    test = actions.add_parser("test", help="call each tool once")
    test.add_argument("yaml", nargs="?", help="file for rollout.multi_turn.tool_config_path")
    test.add_argument("--functions", metavar="FILE", help="file for rollout.multi_turn.function_tool_path")
    test.add_argument("--model", metavar="PATH", help="show the tools as this model's chat template renders them")
    test.add_argument("--only", metavar="NAME", action="append", help="test only this tool (repeatable)")
    test.add_argument(
        "--call", metavar="NAME=JSON", action="append", default=[], help="arguments for a call of a tool (repeatable)"
    )


def run(args: argparse.Namespace) -> int:
    """Test the tools; returns 1 if one failed with an infra_error."""
    from agentrl.tools import load_tools

    if args.yaml is None and args.functions is None:
        raise UserError("name a YAML file of tools, or a Python file with --functions")
    if args.yaml is not None and Path(find(args.yaml, what="tools test")).suffix == ".py":
        raise UserError(f"{args.yaml} is Python: write --functions {args.yaml}, or name the YAML file of its classes")
    tools = load_tools(args.yaml, args.functions, max_response=2000, unit="characters", side="middle")
    return asyncio.run(_test(tools, args, terminal()))


async def _test(tools: "ToolSet", args: argparse.Namespace, console: Console) -> int:
    from agentrl.core.blocking import TEST_MAX_BLOCKED_SECONDS, LoopWatch

    try:
        names = args.only or list(tools.runners)
        for name in names:
            if name not in tools.runners:
                raise UserError(f"--only {name}: no such tool; choose one of {', '.join(tools.runners)}")
        schemas = tools.schemas(names)
        given = _given(args.call, names)
        if args.model:
            _show_prompt(args.model, schemas, console)
        failed, watch = False, LoopWatch(TEST_MAX_BLOCKED_SECONDS, report=lambda _: None)
        for schema in schemas:
            with watch.watching():
                failed |= await _one(tools, schema, given, console, shown=bool(args.model))
        for blocked in watch.found.values():
            console.print(f"\n[bold red]blocked[/]  {escape(str(blocked))}")
        return int(failed or bool(watch.found))
    finally:
        await tools.close()


async def _one(
    tools: "ToolSet", schema: dict[str, Any], given: dict[str, list[Any]], console: Console, *, shown: bool
) -> bool:
    """Call one tool; returns whether it failed with an infra_error."""
    name = schema["function"]["name"]
    console.print(f"\n[bold]{name}[/]")
    if not shown:
        console.print_json(json.dumps(schema, ensure_ascii=False), indent=2)
    session, failed = tools.open(f"test/{name}/0", {}, None), False
    try:
        for arguments in given.get(name) or [tools.runners[name].example()]:
            result = await session.call(name, arguments)
            _show(arguments, result, console)
            failed |= result.outcome.value == "infra_error"
    finally:
        await session.release()
    return failed


def _show(arguments: Any, result: "ToolResult", console: Console) -> None:
    from agentrl.core.json_text import to_json
    from agentrl.tracking.fields import duration, figure

    console.print(Text("→ ", "dim"), Text(to_json(arguments)), sep="")
    outcome = result.outcome.value
    reward = f"  reward {figure(result.reward)}" if result.reward else ""
    console.print(
        Text("← ", "dim"), Text(outcome, COLOURS[outcome]), Text(f"  {duration(result.seconds)}{reward}"), sep=""
    )
    for image in result.images:
        console.print(Text(f"  image: {str(image)[:60]}", "dim"))
    console.print(Text(result.text or result.error or "(no text)"))


def _show_prompt(model: str, schemas: list[dict[str, Any]], console: Console) -> None:
    """Show the tools as the chat template renders them."""
    from agentrl.chat import Chat
    from agentrl.training.model.loading import load_tokenizer_from

    chat = Chat(load_tokenizer_from(model, "--model", trust_remote_code=False))
    text = chat.decode(chat.prompt([{"role": "user", "content": "..."}], schemas))
    console.print(f"[bold]Prompt of {model}[/]")
    console.print(Text(text))
    console.print(f"[bold]Tool-call format[/]: {chat.format}")
    if unread := chat.unread():
        console.print(Text(unread, "yellow"))
    missing = [schema["function"]["name"] for schema in schemas if schema["function"]["name"] not in text]
    if missing:
        console.print(f"[bold red]The template leaves out {', '.join(missing)}[/]: set model.chat_template")


def _given(calls: list[str], names: list[str]) -> dict[str, list[Any]]:
    given: dict[str, list[Any]] = {}
    for call in calls:
        name, _, text = call.partition("=")
        if name not in names:
            raise UserError(f"--call {name}: no such tool; choose one of {', '.join(names)}")
        try:
            given.setdefault(name, []).append(json.loads(text or "{}"))
        except ValueError as error:
            raise UserError(f"--call {name}: {error}; write NAME='{{\"key\": value}}'") from None
    return given
