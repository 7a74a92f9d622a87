"""What plays pages: the story of each in a folder where it may begin."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agentrl.engines.servers.installation import environments
from agentrl.tasks.models import smollm2, tiny
from tests.docs.story import PATH, STARTS, TABLE, Story
from tests.once import made_once

MADE_BY_MAKE = ("AGENTS", "VERIFIERS", "OPENENV", "NEMO_GYM")
"""Environments of `make test-agents`, by the ends of their variables."""
CONVERT = smollm2._convert


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    """The URL of a chat completions server that is content with everything."""

    class Judge(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"choices": [{"message": {"content": "Score: 1"}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.fixture(scope="session")
def smol(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `agentrl model smollm2` converts, with a small model: the tokenizer takes seconds."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(smollm2, "read_model", lambda *_: small_model())
            CONVERT(folder, "float32")

    return made_once(tmp_path_factory, "smol", make)


def small_model() -> Any:
    """A model with random weights, for SmolLM2's own tokenizer and template."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=49152, tie_word_embeddings=True, eos_token_id=2, **sizes))


@pytest.fixture(scope="module")
def starts() -> dict[str, Path]:
    """Folders that pages start from, by name, each made when first asked for."""
    return {}


@pytest.fixture
def story(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    starts: dict[str, Path],
    judge: str,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., Story]]:
    """Makes the story of a page, in a folder where it may begin; `follows`: where earlier pages have left it."""
    stories: list[Story] = []

    small = tiny.TinyShape.of(tiny.HEAD, 2, vocab_size=tiny.TinyShape().vocab_size)
    monkeypatch.setattr(tiny.TinyShape, "of", lambda *_, **__: small)

    def convert(folder: Path, dtype: str) -> None:
        shutil.copytree(request.getfixturevalue("smol"), folder, dirs_exist_ok=True)

    monkeypatch.setattr(smollm2, "_convert", convert)
    monkeypatch.setenv("PATH", PATH)
    monkeypatch.delenv("AGENTRL_SANDBOX_TOKEN", raising=False)

    def make(page: str, follows: bool = False) -> Story:
        start = None if follows else (TABLE.get(page) or {}).get("start")
        if start and start not in starts:
            starts[start] = tmp_path_factory.mktemp(start)
            monkeypatch.chdir(starts[start])
            Story("", starts[start], capsys).do(STARTS[start])
        if start:
            shutil.copytree(starts[start], tmp_path, dirs_exist_ok=True)
        monkeypatch.chdir(tmp_path)
        made_by_make = {name: os.environ.get(f"AGENTRL_{name}", "") for name in MADE_BY_MAKE}
        extra = {"JUDGE": judge, "ENGINES": str(environments()), **made_by_make}
        if (TABLE.get(page) or {}).get("docker"):
            request.getfixturevalue("docker_host")
            extra["BASE"] = request.getfixturevalue("engine").base()
        stories.append(Story(page, tmp_path, capsys, extra, follows=follows))
        return stories[-1]

    yield make
    for made in stories:
        made.close()
