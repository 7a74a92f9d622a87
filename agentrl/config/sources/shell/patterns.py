"""Shell patterns, as in `case` and `${name%pattern}`."""

import re

CLASSES = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "space": r"\s", "upper": "A-Z", "lower": "a-z"}


def regex(pattern: str) -> str:
    """A pattern as a regular expression; a backslash protects what follows."""
    found, at = [], 0
    while at < len(pattern):
        sign, end = pattern[at], at + 1
        if sign == "\\" and end < len(pattern):
            found.append(re.escape(pattern[end]))
            end += 1
        elif sign == "[" and (close := pattern.find("]", at + 2)) > 0:
            close = pattern.find("]", close + 1) if pattern.startswith("[[:", at) else close
            found.append(_members(pattern[at + 1 : close]))
            end = close + 1
        else:
            found.append({"*": "(?s:.*)", "?": "(?s:.)"}.get(sign, re.escape(sign)))
        at = end
    return "".join(found)


def matches(text: str, pattern: str) -> bool:
    """Whether all of a text has the pattern's shape."""
    return re.fullmatch(regex(pattern), text) is not None


def protected(text: str) -> str:
    """A text as a pattern for itself."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)


def without_prefix(text: str, pattern: str, *, longest: bool) -> str:
    """`${name#pattern}`, `##`."""
    ends = range(len(text), -1, -1) if longest else range(len(text) + 1)
    return next((text[end:] for end in ends if matches(text[:end], pattern)), text)


def without_suffix(text: str, pattern: str, *, longest: bool) -> str:
    """`${name%pattern}`, `%%`."""
    starts = range(len(text) + 1) if longest else range(len(text), -1, -1)
    return next((text[:start] for start in starts if matches(text[start:], pattern)), text)


def replaced(text: str, pattern: str, new: str, *, every: bool) -> str:
    """`${name/pattern/new}`, `//`; a leading `#` or `%` binds the pattern to an end."""
    if pattern[:1] in ("#", "%") and not every:
        bound = regex(pattern[1:])
        expression = f"^(?:{bound})" if pattern[0] == "#" else f"(?:{bound})$"
        return re.sub(expression, lambda _: new, text, count=1)
    return re.sub(regex(pattern), lambda _: new, text, count=0 if every else 1) if pattern else text


def _members(inside: str) -> str:
    negated = inside[:1] in ("!", "^")
    inside = inside[1:] if negated else inside
    inside = re.sub(r"\[:(\w+):\]", lambda found: CLASSES.get(found[1], ""), inside.replace("\\", "\\\\"))
    return f"[{'^' if negated else ''}{inside}]"
