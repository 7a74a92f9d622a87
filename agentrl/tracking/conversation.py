"""A trajectory as a person reads it: its exact token stream, trained tokens coloured by how likely they were.

Invariant: nothing is left out or prettified unless `max_prompt` asks for it: special tokens, the template's own
text and the line ends of the model (as a visible mark) are all there.
"""

import math
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentrl.core.errors import plural
from agentrl.core.json_text import HALF
from agentrl.tracking.dumps.records import Record, token_texts, trajectory_record
from agentrl.tracking.dumps.text import Decode
from agentrl.tracking.fields import duration, figure
from agentrl.trajectory.trajectory import Trajectory

BY_PROBABILITY = (
    (0.1, "bold red"),
    (0.3, "red"),
    (0.6, "yellow"),
    (0.9, "bright_green"),
    (math.inf, "green"),
)
"""(below this probability, this style)"""
READ_ONLY = {"prompt": "dim", "tool": "dim cyan", "user": "dim yellow", "template": "dim"}
OUTCOMES = {"ok": "green", "model_error": "yellow", "infra_error": "bold red"}
SPECIAL = re.compile(r"<[|｜][^<>\s]{1,64}[|｜]>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]")
REPEATED = re.compile(r"(<[^<>\s]{1,64}>)\1{3,}")
"""Tokens that stand for a picture, say."""
LINE_END = "↵"
LAST_LINES = 5
"""Lines of a program's output that are shown."""
# Model and tools may write escape codes; those must show, not act on the reader's terminal.
CONTROL = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {0x7F: "␡"}
CONTROL |= dict.fromkeys(range(0xD800, 0xE000), HALF)


def conversation(
    trajectory: Trajectory | Record,
    decode: Decode | None = None,
    *,
    title: str | None = None,
    max_prompt: int | None = None,
) -> Panel:
    """Draw a trajectory, or a dumped one.

    A Trajectory needs `decode`.
    `max_prompt`: characters of the prompt to show; its middle is left out beyond that.
    """
    if isinstance(trajectory, Trajectory):
        if decode is None:
            raise TypeError("a Trajectory holds token ids: pass decode as well")
        trajectory = trajectory_record(0, trajectory, decode)
    record: Record = trajectory
    samples = record["samples"]
    body: list[RenderableType] = [_header(record)]
    for number, sample in enumerate(samples, start=1):
        if len(samples) > 1:
            body.append(Text(f"\nsample {number} of {len(samples)} ({_why(record, number - 1)})", style="bold"))
        body += [Text(""), _stream(sample, max_prompt)]
    body += [Text(""), *_calls(record), *_program(record), *_task(record)]
    if record["error"]:
        body.append(Text(str(record["error"]).translate(CONTROL), style="bold red"))
    body.append(legend())
    name = title or str(record["key"])
    return Panel(Group(*body), title=Text(f" {name} ", "bold"), title_align="left", border_style="bright_black")


def legend() -> Text:
    """Explain the colours."""
    text = Text("trained, by probability ", style="dim")
    low = "0"
    for bound, style in BY_PROBABILITY:
        high = "1" if math.isinf(bound) else f"{bound:g}"
        text.append(f"■ {low}-{high}  ", f"not dim {style}")
        low = high
    text.append("\nread only               ")
    for source, style in READ_ONLY.items():
        text.append(f"{source}  ", style)
    return text


def _header(record: Record) -> Text:
    reward = record["reward"]
    text = Text("reward ", style="dim").append("none" if reward is None else figure(reward), "not dim bold")
    extra = [
        f"{name} {figure(value)}" for name, value in record["reward_extra"].items() if isinstance(value, int | float)
    ]
    if extra:
        text.append(f" ({', '.join(extra)})")
    text.append("  outcome ").append(record["outcome"], f"not dim {OUTCOMES[record['outcome']]}")
    text.append(f" ({record['finish']})")
    trained = sum(sum(sample["columns"]["mask"]) for sample in record["samples"])
    tokens = sum(len(sample["columns"]["ids"]) for sample in record["samples"])
    return text.append(f"  {plural(record['turns'], 'turn')}  {trained} of {tokens} tokens trained")


def _stream(sample: Record, max_prompt: int | None) -> Table:
    """A row a segment: who wrote it, and what."""
    texts, starts = token_texts(sample), accumulate((segment["n"] for segment in sample["segments"]), initial=0)
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=8, no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    for segment, start in zip(sample["segments"], starts, strict=False):
        if segment["source"] == "model":
            label, part = Text(f"model {segment['turn'] + 1}", "bold green"), slice(start, start + segment["n"])
            grid.add_row(label, _trained(texts[part], sample["columns"]["logprobs"][part]))
        else:
            limit = max_prompt if segment["source"] == "prompt" else None
            style = READ_ONLY[segment["source"]]
            grid.add_row(Text(segment["source"], style), _read_only(segment["text"], style, limit))
    return grid


def _trained(texts: list[str], logprobs: list[float]) -> Text:
    text = Text()
    for piece, logprob in zip(texts, logprobs, strict=True):
        style = next(style for bound, style in BY_PROBABILITY if math.exp(logprob) < bound)
        text.append(piece.translate(CONTROL).replace("\n", f"{LINE_END}\n"), style)
    # The mark stands for the last line end: without this the row would end in an empty line.
    if text.plain.endswith("\n"):
        text.right_crop(1)
    text.highlight_regex(SPECIAL, "underline")
    return text


def _read_only(content: str, style: str, limit: int | None) -> Text:
    content = content.translate(CONTROL)
    content = REPEATED.sub(lambda run: f"{run[1]} × {len(run[0]) // len(run[1])}", content)
    if limit is not None and len(content) > limit:
        cut = len(content) - limit
        content = f"{content[: limit // 2]} … {cut:,} characters … {content[len(content) - (limit - limit // 2) :]}"
    if content.endswith("\n"):
        content = content[:-1] + LINE_END
    text = Text(content, style)
    text.highlight_regex(SPECIAL, "underline")
    return text


def _calls(record: Record) -> Iterator[Text]:
    for call in record["tool_calls"]:
        text = Text(f"turn {call['turn'] + 1}  ", style="dim")
        text.append(str(call["name"]).translate(CONTROL), "not dim bold").append("  ")
        text.append(call["outcome"], f"not dim {OUTCOMES[call['outcome']]}")
        yield text.append(f"  {duration(call['seconds'])}  reward {figure(call['reward'])}")


def _why(record: Record, sample: int) -> str:
    """Why this sample is one of several."""
    if sides := record.get("sides"):
        return f"side {sides[sample]}, final reward {figure(record['side_rewards'][sides[sample]])}"
    gateway = record.get("extra", {}).get("gateway")
    if gateway is None:
        return "the template rewrote history"
    shared = (gateway.get("shared") or [0] * (sample + 1))[sample]
    return f"its first {shared} tokens are another sample's" if shared else "a history of its own"


def _program(record: Record) -> Iterator[Text]:
    """The end of an agent program: its code, what it asked, its last lines."""
    program, gateway = record.get("extra", {}).get("program"), record.get("extra", {}).get("gateway", {})
    if not program or "exit_code" not in program:
        return
    code = program["exit_code"]
    ended = "was stopped" if code is None else f"ended with code {code}"
    asked = f", {plural(gateway['requests'], 'request')}" if gateway else ""
    unmet = "".join(f"; not met: {name} × {count}" for name, count in gateway.get("unmet", {}).items())
    yield Text(f"program {program['name']} {ended} after {duration(program['seconds'])}{asked}{unmet}", style="dim")
    yield from _last_lines(program["output"])


def _task(record: Record) -> Iterator[Text]:
    """The phases of its container, and the last lines of the verification."""
    task = record.get("extra", {}).get("task")
    if not isinstance(task, dict) or "seconds" not in task:
        return
    phases = ", ".join(f"{phase} {duration(seconds)}" for phase, seconds in task["seconds"].items())
    yield Text(f"container {task.get('container', '')}: {phases}", style="dim")
    yield from _last_lines(task.get("output", ""))


def _last_lines(output: Any) -> list[Text]:
    lines = str(output).rstrip().splitlines()[-LAST_LINES:]
    return [Text(f"  {line.translate(CONTROL)}", style="dim") for line in lines]
