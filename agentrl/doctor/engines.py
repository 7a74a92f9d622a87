"""Checks the engines: which are installed, and which one the run uses."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from importlib.metadata import version

import torch

from agentrl.config.schema import Config
from agentrl.core.errors import UserError, plural
from agentrl.core.points import ENGINES
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.engines.launching import engine_name, in_process, server_urls
from agentrl.engines.servers.installation import engine_python, find_python
from agentrl.http.client import Http, serves

VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
ANSWERS_WITHIN = 10.0
"""Seconds that a running server gets to answer."""


async def engines(config: Config, device: torch.device) -> AsyncIterator[Finding]:
    """Report device, the run's engine and the other installed engines."""
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else plural(torch.get_num_threads(), "CPU thread")
    yield ok(f"PyTorch {version('torch')}, transformers {version('transformers')}, training on {gpu}")
    name, rollout = engine_name(config.rollout, device.type), config.rollout
    if in_process(name):
        if device.type == "cuda" and name == "hf":
            fix = "`agentrl engine install sglang`, then rollout.name=sglang: many times faster on a GPU"
            yield warning("the engine is hf, in this process", fix)
        else:
            yield ok(f"the engine is {name}, in this process")
    elif rollout.base_url:
        for url in server_urls(rollout):
            yield await _server(name, url)
    elif name in ENGINES.declared:
        yield _installed(name, rollout.engine_python)
    else:
        yield ok(f"the engine is {name}, a server of your own")
    others = [f"{other} {found}" for other in ("sglang", "vllm") if other != name and (found := _version(other))]
    if others:
        yield ok(f"also installed: {', '.join(others)}")


def _installed(name: str, chosen: str | None) -> Finding:
    try:
        python = engine_python(name, name, chosen)
    except UserError as error:
        return problem(str(error).partition(";")[0], f"`agentrl engine install {name}`, or rollout.name=hf")
    found = _version(name, python)
    if found is None:
        return problem(f"{python} has no {name}", f"`agentrl engine install {name}`")
    return ok(f"the engine is {name} {found}")


def _version(name: str, python: str | None = None) -> str | None:
    """Version in the engine's own interpreter; None if it is not installed."""
    python = python or find_python(name, name)
    if python is None:
        return None
    done = subprocess.run([python, "-c", VERSION, name], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


async def _server(name: str, url: str) -> Finding:
    http = Http(url)
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            up = await serves(http)
    except Exception as error:  # any network error
        return problem(f"{url} does not answer: {type(error).__name__}", f"start {name} there, or fix rollout.base_url")
    finally:
        await http.close()
    return ok(f"{url} answers") if up else problem(f"{url} is not ready", "wait, or read its log")
