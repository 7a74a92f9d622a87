"""A function for another process."""

import os

from agentrl.core.errors import UserError


def echo(text: str) -> str:
    """The text; or a failure of the kind that it names."""
    if text == "refuse":
        raise UserError("install it")
    if text == "die":
        os._exit(3)
    return {text: text, "fail": ""}[text] or {}[text]
