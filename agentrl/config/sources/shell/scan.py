"""Where words, quotes and substitutions of a shell text end.

Invariant: every function takes a position and gives one behind it; a construct that never ends gives the text's end.
"""

BLANK = " \t"
BREAKS = " \t\n;&|<>()"


def after_word(text: str, at: int) -> int:
    """Behind the word that begins at `at`."""
    if text[at : at + 2] in ("<(", ">("):
        at = after_parenthesis(text, at + 1)
    while at < len(text) and text[at] not in BREAKS:
        at = after_piece(text, at)
    return at


def after_piece(text: str, at: int) -> int:
    """Behind a character, a quoted piece or a substitution."""
    sign, two = text[at], text[at : at + 2]
    if sign == "\\":
        return at + 2
    if sign == "'":
        return _behind(text, "'", at + 1)
    if two == "$'":
        return after_escaped(text, at + 2, "'")
    if sign == '"':
        return after_quotes(text, at)
    if two == '$"':
        return after_quotes(text, at + 1)
    if sign == "`":
        return after_escaped(text, at + 1, "`")
    if two == "$(":
        return after_parenthesis(text, at + 1)
    if two in ("${", "$["):
        return after_brace(text, at + 1, {"{": "}", "[": "]"}[two[1]])
    return at + 1


def after_quotes(text: str, at: int) -> int:
    """Behind the double quotes that open at `at`."""
    at += 1
    while at < len(text) and text[at] != '"':
        at = at + 1 if text[at] == "'" or text[at : at + 2] in ("$'", '$"') else after_piece(text, at)
    return min(at + 1, len(text))


def after_escaped(text: str, at: int, end: str) -> int:
    """Behind the next `end` that no backslash protects."""
    while at < len(text) and text[at] != end:
        at += 2 if text[at] == "\\" else 1
    return min(at + 1, len(text))


def after_brace(text: str, at: int, end: str) -> int:
    """Behind the `end` of the bracket at `at`."""
    at += 1
    while at < len(text) and text[at] != end:
        at = after_piece(text, at)
    return min(at + 1, len(text))


def after_parenthesis(text: str, at: int) -> int:
    """Behind the `)` of the `(` at `at`; comments may hold anything."""
    depth = 0
    while at < len(text):
        if text[at] == "#" and text[at - 1] in BREAKS:
            at = end_of_line(text, at)
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
        at = after_piece(text, at)
    return at


def end_of_line(text: str, at: int) -> int:
    """At the next line break."""
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _behind(text: str, end: str, at: int) -> int:
    found = text.find(end, at)
    return len(text) if found < 0 else found + 1
