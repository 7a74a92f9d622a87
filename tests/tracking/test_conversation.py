"""Conversations as they appear on the screen."""

import io

import pytest
from rich.console import Console

from agentrl.tracking import conversation
from agentrl.tracking.dumps.records import trajectory_record
from agentrl.trajectory.trajectory import Outcome


def drawn(renderable, *, width=100, styles=False):
    paper = Console(record=True, width=width, file=io.StringIO(), color_system="standard", force_terminal=True)
    paper.print(renderable)
    return paper.export_text(styles=styles)


def inside(text):
    """Lines within the frame, without the padding on their right."""
    return [line[2:-2].rstrip() for line in text.splitlines()[1:-1]]


def test_the_exact_stream_by_who_wrote_it(dialog, decode):
    lines = inside(drawn(conversation(dialog, decode)))
    assert lines[0] == "reward 1.000 (acc 1.000)  outcome ok (stop)  2 turns  " + lines[0].split("turns  ")[1]
    start = lines.index("prompt   <|im_start|>user")
    assert lines[start : start + 11] == [
        "prompt   <|im_start|>user",
        "         What is 17 * 23?<|im_end|>",
        "         <|im_start|>assistant↵",
        'model 1  <tool_call>{"name": "calculator", "arguments": {"expression": "17 *',
        '         23"}}</tool_call><|im_end|>',
        "template ↵",
        "tool     <|im_start|>tool",
        "         391<|im_end|>↵",
        "template <|im_start|>assistant↵",
        "model 2  It is 391 🙂 – trés simple.↵",
        "         Bye<|im_end|>",
    ]
    assert "turn 1  calculator  ok  12ms  reward 0.500" in lines


def test_colours_tell_trained_from_read_and_likely_from_unlikely(dialog, decode):
    text = drawn(conversation(dialog, decode), styles=True)
    assert "\x1b[32mcalculator" in text or "\x1b[32mcal" in text  # p = 0.99
    assert "\x1b[1;31mIt" in text  # p = 0.05
    assert "\x1b[2;36m391" in text  # read from a tool


def test_a_dump_looks_the_same_as_the_trajectory(dialog, decode):
    record = trajectory_record(3, dialog, decode)
    assert drawn(conversation(record), styles=True) == drawn(conversation(dialog, decode), styles=True)


def test_a_trajectory_needs_a_decoder(dialog):
    with pytest.raises(TypeError, match="decode"):
        conversation(dialog)


def test_escape_codes_show_instead_of_acting(dialog, encode, decode):
    dialog.ledgers[0].append_model(
        encode("\x1b[31mred\x07"), [-0.1] * len(encode("\x1b[31mred\x07")), turn=1, version=4
    )
    dialog.error = "\x1b]0;title\x07"
    text = drawn(conversation(dialog, decode))
    assert "␛[31mred␇" in text
    assert "␛]0;title␇" in text


def test_markup_is_text(dialog, encode, decode):
    ids = encode("[bold]not bold[/bold] [/nonsense]")
    dialog.ledgers[0].append_model(ids, [-0.1] * len(ids), turn=1, version=4)
    assert "[bold]not bold[/bold] [/nonsense]" in drawn(conversation(dialog, decode))


def test_long_prompts_fold_on_demand_only(dialog, decode):
    record = trajectory_record(1, dialog, decode)
    record["samples"][0]["segments"][0]["text"] = "HEAD" + "x" * 5000 + "TAIL"
    folded = drawn(conversation(record, max_prompt=100))
    assert "HEAD" in folded
    assert "TAIL" in folded
    assert "… 4,908 characters …" in folded
    assert "characters" not in drawn(conversation(record))


def test_samples_of_a_split_trajectory_are_told_apart(dialog, decode):
    dialog.ledgers *= 2
    text = drawn(conversation(dialog, decode))
    assert "sample 1 of 2 (the template rewrote history)" in text
    assert "sample 2 of 2" in text
    dialog.extra["gateway"] = {"requests": 2, "ledgers": 2, "shared": [0, 7]}
    text = drawn(conversation(dialog, decode))
    assert "sample 1 of 2 (a history of its own)" in text
    assert "sample 2 of 2 (its first 7 tokens are another sample's)" in text


def test_a_failure_is_said(plain, decode):
    failed = plain(None, ledgers=[], outcome=Outcome.INFRA_ERROR, finish="error", error="sandbox is down", turns=0)
    text = drawn(conversation(failed, decode))
    assert "reward none" in text
    assert "infra_error (error)" in text
    assert "sandbox is down" in text


@pytest.mark.parametrize("width", [60, 80])
def test_it_fits_narrow_terminals(dialog, decode, width):
    text = drawn(conversation(dialog, decode, title="after training"), width=width)
    assert "after training" in text
    assert "Bye<|im_end|>" in text
    assert all(Console(width=width).measure(line).maximum <= width for line in text.splitlines())


def test_the_end_of_an_agent_program_is_shown(dialog, decode):
    output = "".join(f"line {i}\n" for i in range(9)) + "\x1b[31mbye\n"
    dialog.extra["program"] = {"name": "mini", "exit_code": 3, "seconds": 2.0, "output": output}
    lines = inside(drawn(conversation(dialog, decode)))
    dialog.extra["gateway"] = {"requests": 1, "ledgers": 1, "unmet": {"response_format": 2}}
    asked = inside(drawn(conversation(dialog, decode)))
    assert "program mini ended with code 3 after 2.0s, 1 request; not met: response_format × 2" in asked
    start = lines.index("program mini ended with code 3 after 2.0s")
    assert lines[start + 1 : start + 6] == [*(f"  line {i}" for i in range(5, 9)), "  ␛[31mbye"]


def test_the_phases_of_a_container_and_its_verification_are_shown(dialog, decode):
    seconds = {"build": 1.0, "start": 0.5, "run": 12.0, "verify": 3.0}
    dialog.extra["task"] = {"container": "box-1", "seconds": seconds, "output": "2 passed\n\x1b[31m1\n"}
    lines = inside(drawn(conversation(dialog, decode)))
    start = lines.index("container box-1: build 1.0s, start 500ms, run 12s, verify 3.0s")
    assert lines[start + 1 : start + 3] == ["  2 passed", "  ␛[31m1"]
    dialog.extra["task"] = "arithmetic"  # a user's own
    assert not any(line.startswith("container") for line in inside(drawn(conversation(dialog, decode))))
