"""Think blocks: the tags around them, and whether a generation prompt leaves one open or already closes it."""

BLOCKS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
}
"""Opening tag -> closing tag."""


def left_open(prompt: str) -> str:
    """The opening tag with which a generation prompt ends: the turn begins inside the block. "" without one."""
    end = prompt.rstrip()
    return next((tag for tag in BLOCKS if end.endswith(tag)), "")


def closed_at_end(prompt: str) -> str:
    """The closing tag with which a generation prompt ends: the turn begins after its thinking. "" without one."""
    end = prompt.rstrip()
    return next((tag for tag in BLOCKS.values() if end.endswith(tag)), "")
