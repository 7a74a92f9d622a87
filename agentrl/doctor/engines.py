"""Checks the engines: which are installed, and which one the run uses."""

import asyncio
from collections.abc import AsyncIterator
from importlib.metadata import version

import torch

from agentrl.config.keys import as_list
from agentrl.config.schema import Config
from agentrl.core.errors import UserError, plural
from agentrl.core.points import ENGINES
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.engines.launching import engine_name, in_process
from agentrl.engines.servers.installation import RECIPES, engine_python, find_python, version_in
from agentrl.http.client import Http, serves

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
        for url in as_list(rollout.base_url):
            yield await _server(name, url)
    elif name in ENGINES.declared:
        yield _installed(name, rollout.engine_python)
    else:
        yield ok(f"the engine is {name}, a server of your own")
    pythons = {other: find_python(other, other) for other in RECIPES if other != name}
    found = {other: version_in(python, other) for other, python in pythons.items() if python}
    others = [f"{other} {there}" for other, there in found.items() if there]
    if others:
        yield ok(f"also installed: {', '.join(others)}")


def _installed(name: str, chosen: str | None) -> Finding:
    try:
        python = engine_python(name, name, chosen)
    except UserError as error:
        return problem(str(error).partition(";")[0], f"`agentrl engine install {name}`, or rollout.name=hf")
    found = version_in(python, name)
    if not found:
        return problem(f"{python} has no {name}", f"`agentrl engine install {name}`")
    return ok(f"the engine is {name} {found}")


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
