"""Extracts code from a completion, by SandboxFusion's rules.

Blocks have a priority: fenced 30, fenced but never closed 20, found by the form of the lines 10. Among those of the
highest priority the first in the right language counts, else the first. Standard library only: this file is also copied
into the sandbox, where a request's own extraction logic runs.
"""

import re
from dataclasses import dataclass

NAMES = (
    "py=python python3=python c++=cpp cc=cpp js=nodejs javascript=nodejs node=nodejs ts=typescript sh=bash shell=bash "
    "c#=csharp rs=rust golang=go jl=julia r=R d=D_ut kotlin=kotlin_script"
)
ALIASES = dict(pair.split("=") for pair in NAMES.split())
"""{label after ```: SandboxFusion's name}, where they differ."""
KINDS = {30: "fenced", 20: "incomplete_fenced", 10: "heuristic"}
FENCED = re.compile(r"```([^\n`]*)\n(.*?)\n[ \t]*```", re.DOTALL)
OPENED = re.compile(r"```([^\n`]*)\n((?:(?!```).)*)\Z", re.DOTALL)
PYTHON_STARTS = re.compile(r"(?:import|from|def|class|async def)\s+\w|@\w")
PYTHON_LINE = re.compile(
    r"$|\s|[@#)\]}]|(?:import|from|def|class|async|if|else|elif|for|while|try|except|finally|with|return|print)\b"
    r"|[\w.\[\], ]{1,200}[-+*/]?=|[\w.]{1,200}\("
)
SQL = re.compile(r"^\s*(?:select|with\s)[^;]*;?", re.IGNORECASE | re.MULTILINE)


@dataclass
class CodeBlock:
    """A piece of code with its priority."""

    priority: int = 40
    language: str = ""
    code: str = ""


def language_of(label: str) -> str:
    """A fence's label as the name of a language."""
    words = label.strip().split()
    name = words[0] if words else ""
    return ALIASES.get(name.lower(), name.lower())


def extract_fenced_code(completion: str) -> list[CodeBlock]:
    """Blocks between ``` and ```."""
    return [CodeBlock(30, language_of(label), code) for label, code in FENCED.findall(completion)]


def extract_incomplete_fenced_code(completion: str) -> list[CodeBlock]:
    """The text after a ``` that is never closed."""
    return [CodeBlock(20, language_of(label), code) for label, code in OPENED.findall(completion)]


def extract_heuristic_code(completion: str, language: str = "") -> list[CodeBlock]:
    """Code without fences, in Python, SQL and bash: guessed from the form of the lines."""
    if language == "python":
        found = python_lines(completion.split("\n"))
    elif language == "sql":
        found = SQL.findall(completion)
    else:
        found = [completion] if language == "bash" else []
    return [CodeBlock(10, language, code) for code in found if code.strip()]


def python_lines(lines: list[str]) -> list[str]:
    """The lines from the first import or definition on that look like Python."""
    start = next((number for number, line in enumerate(lines) if PYTHON_STARTS.match(line)), len(lines))
    end = next((number for number in range(start, len(lines)) if not PYTHON_LINE.match(lines[number])), len(lines))
    return ["\n".join(lines[start:end])] if start < end else []


def best(blocks: list[CodeBlock], language: str) -> tuple[str, str]:
    """The code that counts, and SandboxFusion's name for its kind."""
    if not blocks:
        return "", "empty"
    highest = max(block.priority for block in blocks)
    blocks = [block for block in blocks if block.priority == highest]
    chosen = next((block for block in blocks if block.language == language), blocks[0])
    return chosen.code, KINDS.get(chosen.priority, "fenced")


def all_blocks(completion: str, language: str) -> list[CodeBlock]:
    """Every block, of every priority."""
    fenced = extract_fenced_code(completion) + extract_incomplete_fenced_code(completion)
    return fenced or extract_heuristic_code(completion, language)


def custom_blocks(completion: str, logic: str) -> list[CodeBlock]:
    """Blocks that a piece of Python submits. It runs in this process: call this inside a sandbox only."""
    found: list[CodeBlock] = []
    names = {
        "CodeBlock": CodeBlock,
        "completion": completion,
        "submit_code_blocks": found.extend,
        "extract_fenced_code": extract_fenced_code,
        "extract_heuristic_code": extract_heuristic_code,
    }
    exec(logic, names)
    return found
