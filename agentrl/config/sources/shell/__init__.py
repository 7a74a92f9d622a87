"""Shell scripts, evaluated as bash would evaluate them: variables, arrays, branches, loops and functions.

Nothing is executed. Commands are handed to a callback with the words that they would get; what only a machine knows,
such as the output of `date` or a variable of another environment, is a mark in the text (`marks.py`).

`scan.py` finds words, `parse.py` builds the tree in `tree.py`, `expand.py` and `arithmetic.py` turn words into text,
`conditions.py` evaluates tests, and `interpreter.py` walks the tree with the commands in `builtins.py`.
"""

from agentrl.config.sources.shell.interpreter import Command, Ended, Shell

__all__ = ["Command", "Ended", "Shell"]
