"""Commands that are worked out, not started: bash's own, and a few that only change text."""

import os.path
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config.sources.shell.marks import mark, unsure
from agentrl.config.sources.shell.state import Field, Leave, Status

if TYPE_CHECKING:
    from agentrl.config.sources.shell.interpreter import Shell

ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def _nothing(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    return "ok"


def _false(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    return "failed"


def _test(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    texts = [word.text for word in words[1:]]
    return shell.tested(texts[:-1] if words[0].text == "[" else texts, shapes=False)


def _echo(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    texts = [word.text for word in words[1:]]
    options: list[str] = []
    while texts and texts[0] in ("-n", "-e", "-E", "-ne", "-en"):
        options.append(texts.pop(0))
    shell.printed.append(" ".join(texts) + ("" if "n" in "".join(options) else "\n"))
    return "ok"


def _printf(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    texts = [word.text for word in words[1:]]
    if texts[:1] == ["-v"] or not texts:
        shell.state.put(texts[1], mark(texts[1])) if len(texts) > 1 else None
        return "ok"
    form, values = texts[0], texts[1:] or [""]
    for sign, plain in ESCAPES.items():
        form = form.replace(sign, plain)
    plain = form.replace("%s", "").replace("%d", "")
    count = form.count("%s") + form.count("%d")
    if "%" in plain or not count:
        shell.printed.append(form if "%" not in plain else mark("COMMAND"))
        return "ok"
    for at in range(0, len(values), count):
        filled = form.replace("%d", "%s")
        for value in (values[at : at + count] + [""] * count)[:count]:
            filled = filled.replace("%s", value, 1)
        shell.printed.append(filled)
    return "ok"


def _cat(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    shell.printed.append(mark("COMMAND") if stdin is None or len(words) > 1 else stdin)
    return "ok"


def _cd(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    places = [word.text for word in words[1:] if not word.text.startswith("-")]
    place = places[0] if places else shell.state.scalar("HOME")
    shell.state.folder = mark("PWD") if unsure(place) else _joined(shell.state.folder, place)
    return "ok"


def _joined(folder: str, place: str) -> str:
    if unsure(folder) and not place.startswith("/"):
        return folder
    return os.path.normpath(os.path.join(folder, place))


def _pwd(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    shell.printed.append(shell.state.folder + "\n")
    return "ok"


def _of_path(change: Callable[["Shell", str], str]) -> "Builtin":
    """`dirname`, `basename` and the like: the last argument changed."""

    def run(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
        texts = [word.text for word in words[1:] if not (len(word.text) == 2 and word.text.startswith("-"))]
        if not texts:
            return "failed"
        changed = change(shell, texts[0])
        if words[0].text == "basename" and len(texts) > 1 and texts[1] != changed:
            changed = changed.removesuffix(texts[1])
        shell.printed.append(changed + "\n")
        return "ok"

    return run


def _dirname(shell: "Shell", text: str) -> str:
    return os.path.dirname(text.rstrip("/")) or ("/" if text.startswith("/") else ".")


def _basename(shell: "Shell", text: str) -> str:
    return os.path.basename(text.rstrip("/")) or text


def _realpath(shell: "Shell", text: str) -> str:
    return mark("COMMAND") if unsure(text) else _joined(shell.state.folder, text)


def _shift(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    count = shell.expander.number(words[1].text) if len(words) > 1 else 1
    if not shell.state.arguments_known:
        return "ok"
    if count is None or count > len(shell.state.arguments):
        return "failed"
    shell.state.arguments = shell.state.arguments[count:]
    return "ok"


def _set(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    texts = [word.text for word in words]
    options = [text for text in texts[1:] if text[:1] in ("-", "+") and text != "--"]
    for sign in [text[0] for text in options if "u" in text] + ["-" if "nounset" in texts else ""]:
        shell.state.nounset = sign == "-" if sign else shell.state.nounset
    if "--" in texts:
        shell.state.arguments, shell.state.arguments_known = tuple(words[texts.index("--") + 1 :]), True
    return "ok"


def _unset(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    for word in words[1:]:
        shell.state.put(word.text, None)
        shell.state.functions.pop(word.text, None)
    return "ok"


def _read(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    """`read -r a b <<< text`, `read -r -d '' name <<EOF`, `read -a array`."""
    texts = [word.text for word in words[1:]]
    names: list[str] = []
    array, whole = False, False
    while texts:
        text = texts.pop(0)
        if text.startswith("-") and len(text) > 1:
            array |= "a" in text
            whole |= "d" in text
            if text[-1] in "dnptuN" and texts:
                texts.pop(0)
        else:
            names.append(text)
    if stdin is None:
        for name in names:
            shell.state.put(name, mark(name))
        return "unknown"
    line = stdin.strip("\n") if whole else stdin.partition("\n")[0]
    blanks = shell.state.get("IFS")
    _read_into(shell, names or ["REPLY"], line, blanks if isinstance(blanks, str) else None, array)
    return "failed" if whole else "ok"


def _read_into(shell: "Shell", names: list[str], line: str, blanks: str | None, array: bool) -> None:
    at_blanks = blanks is None or not blanks.strip()
    pieces = line.split() if at_blanks else line.split(blanks[0])  # type: ignore[index]
    if blanks == "":
        pieces = [line]
    if array:
        shell.state.put(names[0], tuple(Field(piece, 0) for piece in pieces))
        return
    if blanks != "":
        count = len(names) - 1
        separator = None if at_blanks else blanks[0]  # type: ignore[index]
        pieces = line.split(separator, count) if len(pieces) > count else pieces
    for number, name in enumerate(names):
        shell.state.put(name, pieces[number].strip() if number < len(pieces) else "")


def _leave(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    status = words[1].text if len(words) > 1 else "0"
    raise Leave(words[0].text, status if words[0].text in ("exit", "return") else "0")


def _eval(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    text = " ".join(word.text for word in words[1:])
    return shell.text(text, words[0].line)


def _source(shell: "Shell", words: list[Field], stdin: str | None) -> Status:
    file = find_script(shell, words[1].text) if len(words) > 1 else None
    if file is not None:
        shell.script(file, words[2:], same=True)
    return "started"


def find_script(shell: "Shell", name: str) -> Path | None:
    """A script that another one names: from where that stands, or from a folder above its file."""
    if unsure(name):
        return None
    places = [Path(shell.state.folder)] if not unsure(shell.state.folder) else []
    places += [] if name.startswith("/") else shell.file.resolve().parents
    return next((place / name for place in places if (place / name).is_file()), None)


Builtin = Callable[["Shell", list[Field], str | None], Status]

BUILTINS: Mapping[str, Builtin] = {
    **dict.fromkeys((":", "true", "ulimit", "trap", "umask", "wait", "shopt", "alias", "hash", "type"), _nothing),
    "false": _false,
    **dict.fromkeys(("[", "test"), _test),
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    **dict.fromkeys(("cd", "pushd"), _cd),
    "pwd": _pwd,
    "dirname": _of_path(_dirname),
    "basename": _of_path(_basename),
    **dict.fromkeys(("realpath", "readlink"), _of_path(_realpath)),
    "shift": _shift,
    "set": _set,
    "unset": _unset,
    "read": _read,
    **dict.fromkeys(("exit", "return", "break", "continue"), _leave),
    "eval": _eval,
    **dict.fromkeys(("source", "."), _source),
}
