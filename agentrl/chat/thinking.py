"""Think blocks: the tags around them, and whether a generation prompt leaves one open or already closes it."""

BLOCKS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",
    "<think:opensource>": "</think:opensource>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
    "<|open|>think<|sep|>": "<|close|>think<|sep|>",
    "<|think|>": "<|end|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
}
"""Opening tag -> closing tag."""
_LONGEST = max(map(len, BLOCKS))
_TAIL = 256
_ENDS_TURNS = "<|end|>"
"""A closing tag that ends turns as well: a prompt that ends with it says nothing of thinking."""


def left_open(prompt: str) -> str:
    """The opening tag with which a generation prompt ends: the turn begins inside the block. "" without one."""
    end = prompt[-_TAIL:].rstrip()
    return next((tag for tag in BLOCKS if end.endswith(tag)), "")


def closed_at_end(prompt: str) -> str:
    """The closing tag with which a generation prompt ends: the turn begins after its thinking. "" without one."""
    end = prompt[-_TAIL:].rstrip()
    return next((tag for tag in BLOCKS.values() if tag != _ENDS_TURNS and end.endswith(tag)), "")


def begins_with(turn: str) -> str:
    """The opening tag with which a turn begins, after white space; "" without one."""
    start = len(turn) - len(turn.lstrip())
    beginning = turn[start : start + _LONGEST]
    return next((tag for tag in BLOCKS if beginning.startswith(tag)), "")
