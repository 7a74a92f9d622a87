"""Plays a page from its first block to its last, in a folder of its own, as somebody would who copies and pastes.

`agentrl` commands run in this process, everything else and whatever serves in bash. commands.yaml says what stands for
the page's placeholders, what makes a command small, and what is not run and why.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.cli.main import main
from agentrl.core.points import REGISTRIES
from tests.docs import names
from tests.docs.pages import PAGES, Block, blocks, section
from tests.registries import scoped

TABLE = yaml.safe_load((Path(__file__).parent / "commands.yaml").read_text())
STARTS, EVERYWHERE = TABLE.pop("starts"), TABLE.pop("everywhere")
CONFIGURED = ("train", "rollout", "sft", "generate", "eval", "doctor")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


class Story:
    """A page's commands and files; `used` keeps which entries of the table it needed."""

    def __init__(
        self, page: str, folder: Path, capture: Any, extra: Mapping[str, str] | None = None, *, follows: bool = False
    ) -> None:
        """`follows`: earlier pages have made the files that the page needs."""
        self.page, self.folder, self.capture = page, folder, capture
        self.plan = TABLE.get(page) or {}
        self.plan = {kind: entry for kind, entry in self.plan.items() if not (follows and kind in ("setup", "write"))}
        self.swap: dict[str, str] = {**self.plan.get("swap", {}), **(extra or {})}
        self.used: set[str] = set()
        self.exports: list[str] = []
        self.servers: list[subprocess.Popen[bytes]] = []
        self.said = ""
        given = getattr(names, page.removesuffix(".md").replace("-", "_"), dict)
        self.names: dict[str, Any] = {"__name__": "shown", **given()}
        """What the page's Python has defined so far."""

    def play(self) -> None:
        for file, text in self.plan.get("write", {}).items():
            self.write(file, text)
        self.do(self.plan.get("setup", []))
        with scoped(*REGISTRIES):  # what a page registers is forgotten at its end
            for block in shown(self.page):
                getattr(self, block.kind)(block)
        for file in self.plan.get("leaves", []):
            assert (self.folder / file).exists(), file
        for text in self.plan.get("says", []):
            assert text in self.said, text
        entries = {entry for kind in ("swap", "add", "not_run", "serves", "shell") for entry in self.plan.get(kind, {})}
        assert entries <= self.used, f"commands.yaml, {self.page}: nothing uses {entries - self.used}"

    def do(self, commands: Iterable[str]) -> None:
        for command in commands:
            code = self.command(command)
            assert code == 0, f"{self.page}: {command}\nexit code {code}\n{self.said[-2000:]}"

    def close(self) -> None:
        for server in self.servers:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
        for server in self.servers:
            server.wait(60)

    def write(self, file: str, text: str) -> None:
        place = self.folder / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    # A method for each kind of block.

    def text(self, block: Block) -> None:
        """Nothing to do."""

    def csv(self, block: Block) -> None:
        """A file's rows, or settings."""
        if block.file:
            self.write(block.file, block.text)

    toml = csv

    def bash(self, block: Block) -> None:
        self.exports.clear()
        if block.file:
            self.write(block.file, self.swapped(block.text))
        self.do(block.commands)

    def console(self, block: Block) -> None:
        for command, answer in zip(block.commands, block.answers, strict=True):
            before = len(self.said)
            self.call(words(command, self.folder))
            assert self.said[before:].strip() == answer

    def python(self, block: Block) -> None:
        if block.file:
            self.write(block.file, self.swapped(block.text))
        if block.file in self.plan.get("elsewhere", []):
            return
        code = compile(self.swapped(block.text), f"{self.page}, below line {block.line}", "exec")
        with scoped(*REGISTRIES):  # a file that the block shows registers once more when it is imported
            exec(code, self.names)
        self.heard()

    def yaml(self, block: Block) -> None:
        assert yaml.safe_load(block.text)
        if block.file:
            self.write(block.file, self.swapped(block.text))

    json = yaml

    # Commands. The table knows them as the page shows them.

    def command(self, shown: str) -> int:
        """Its exit code; 0 for one that the table lists as not run."""
        line = self.swapped(shown)
        if self.entry("not_run", shown) is not None:
            return self.only_composed(line)
        port = self.entry("serves", shown)
        if port is not None:
            return self.serve(line, str(port))
        if line.startswith("export "):
            self.exports.append(line)
            return 0
        variables = self.entry("shell", shown)
        if variables or not line.startswith("agentrl "):
            return self.shell(f"{variables or ''} {line}".strip())
        small = [more for more in (self.entry("everywhere", shown), self.entry("add", shown)) if more]
        return self.call(words(" ".join([line, *small]), self.folder))

    def only_composed(self, line: str) -> int:
        found = [word for word in words(line, self.folder) if word != "..."] if line.startswith("agentrl ") else []
        return self.call([*found, "--cfg", "job"]) if found[1:2] and found[1] in CONFIGURED else 0

    def call(self, argv: list[str]) -> int:
        try:
            code = main(argv[1:])
        except SystemExit as end:
            code = int(end.code or 0)
        self.heard()
        return code

    def shell(self, line: str) -> int:
        done = subprocess.run(bash(*self.exports, line), cwd=self.folder, capture_output=True)
        self.said += (done.stdout + done.stderr).decode()
        return done.returncode

    def serve(self, line: str, port: str) -> int:
        """Start it on a free port, which from now on stands for the one shown, and wait until it answers."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            mine = str(free.getsockname()[1])
        line = f"{line.partition(' #')[0]} --port {mine}"
        command = bash(*self.exports, line)
        server = subprocess.Popen(command, cwd=self.folder, start_new_session=True)
        self.servers.append(server)
        answers(f"http://127.0.0.1:{mine}/", server)
        self.swap[f":{port}"] = f":{mine}"
        return 0

    # The table.

    def swapped(self, text: str) -> str:
        for shown, here in self.swap.items():
            if shown in text:
                self.used.add(shown)
                before = r"(?<!\w)" if shown[0].isalnum() else ""
                text = re.sub(rf"{before}{re.escape(shown)}(?!\w)", lambda _, here=here: here, text)
        return text

    def entry(self, kind: str, line: str) -> Any:
        """What the table has for a command that begins like this: its longest entry."""
        entries = EVERYWHERE if kind == "everywhere" else self.plan.get(kind, {})
        fitting = [entry for entry in entries if re.sub(r"\s+", " ", line).startswith(entry)]
        if not fitting:
            return None
        found = max(fitting, key=len)
        self.used.add(found)
        return entries[found]

    def heard(self) -> None:
        out, err = self.capture.readouterr()
        self.said += out + err


def shown(name: str) -> list[Block]:
    """Blocks of a section, or of a page without the sections that the table lists by themselves."""
    if "#" in name:
        return list(section(name))
    apart = {entry.partition("#")[2] for entry in TABLE if entry.startswith(f"{name}#")}
    return [block for block in blocks(PAGES[name]) if block.section not in apart]


def words(line: str, folder: Path) -> list[str]:
    """The words of a command as bash takes them apart, comments and variables included."""
    lists = bash(f"printf '%s\\0' {line}")
    done = subprocess.run(lists, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def bash(*lines: str) -> list[str]:
    return ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]


def answers(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Return once something answers there, whatever it says."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=10).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"{server.args} ended with {server.returncode}")
