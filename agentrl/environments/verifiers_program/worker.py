"""Runs rollouts of one verifiers environment, in an interpreter that has verifiers.

    python worker.py SETTINGS           prints the tasks
    python worker.py SETTINGS SOCKET    serves rollouts, one a connection

SETTINGS is a file of JSON: `id`, `kwargs` (the taskset's configuration), `settings` (the environment's), `count` (tasks
that are read) and `turns` (the most of an agent, or null). Requests and answers are lines of JSON. A rollout ends with
its connection.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import agentrl_served as served
from agentrl_classic import MODEL, ClassicEnvironment, is_classic, module_of

CHAT = "agentrl_chat"
"""The harness of an environment that brings none: a module in this folder."""

Answer = dict[str, Any]


def main() -> None:
    """Print the tasks, or serve rollouts."""
    with open(sys.argv[1]) as file:
        settings = json.load(file)
    if len(sys.argv) == 3:
        asyncio.run(serve(settings, sys.argv[2]))
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # environments may print
    try:
        answer = described(settings)
    except (Exception, SystemExit) as error:
        answer = {"refused": refusal(error, settings["id"])}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
    os._exit(0)


def described(settings: dict[str, Any]) -> Answer:
    """The prompts of the tasks, as messages; None where the environment itself begins the conversation."""
    if is_classic(settings["id"]):
        return {"tasks": ClassicEnvironment(settings).prompts()}
    env = load(settings)
    return {"tasks": [prompt_of(task.data) for task in islice(env.taskset, settings["count"])]}


def load(settings: dict[str, Any]) -> Any:
    """The environment, whose agents run on this host unless the settings say otherwise."""
    from verifiers.v1.utils.loaders import default_harness_id, load_environment, resolve_env_config

    written = dict(settings["settings"])
    config = resolve_env_config({**written, "taskset": {**settings["kwargs"], "id": settings["id"]}})
    brings_none = default_harness_id(settings["id"]) == "bash"
    agents = agents_of(config, written, settings["turns"], CHAT if brings_none else None)
    return load_environment(config.model_copy(update=agents))


def agents_of(config: Any, written: dict[str, Any], turns: int | None, harness: str | None) -> dict[str, Any]:
    """The configurations of the agents, by name, with defaults for what is not written."""
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.runtimes import SubprocessConfig
    from verifiers.v1.utils.loaders import harness_config_type

    agents = {}
    for name, agent in agent_config_fields(config).items():
        own: dict[str, Any] = {} if "runtime" in (written.get(name) or {}) else {"runtime": SubprocessConfig()}
        if agent.harness is None and harness is not None:
            own["harness"] = harness_config_type(harness)(id=harness)
        if agent.max_turns is None:
            own["max_turns"] = turns
        agents[name] = agent.model_copy(update=own)
    return agents


def prompt_of(data: Any) -> list[dict[str, Any]] | None:
    """A task's prompt as messages."""
    from agentrl_chat import messages_of

    return None if data.prompt is None else messages_of(data.system_prompt, data.prompt)


def refusal(error: BaseException, id: str) -> str:
    """A line for an environment that cannot be loaded."""
    pip = f"`{sys.executable} -m pip install"
    if find_spec("verifiers") is None:
        return f"there is no verifiers in {sys.executable}: run {pip} verifiers`"
    here = f"verifiers {version('verifiers')} in {sys.executable}"
    source = find_spec(module_of(id))
    if source is None and isinstance(error, ModuleNotFoundError):
        found = f"there is no environment {id} in {sys.executable}: install the package that has it with {pip} {id}`"
        return f"{found}, or put its module beside environments.yaml"
    written = Path(str(source.origin)).read_text() if source else ""
    if "load_environment" in written and not is_classic(id):
        return f"{id} is written for the older API, which {here} does not have: run {pip} 'verifiers<0.4'`"
    if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("verifiers."):
        return f"{id} is written for a newer API than that of {here}: run {pip} -U verifiers`"
    return said(error)


def said(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


async def serve(settings: dict[str, Any], path: str) -> None:
    """Answer until the process is ended."""
    if is_classic(settings["id"]):
        classic = ClassicEnvironment(settings)
        await served.serve(path, lambda asked: tried(classic.roll_out(asked["task"], asked["url"])))
    keep_nothing()
    env = load(settings)
    tasks = list(islice(env.taskset, settings["count"]))
    async with env.serving():
        await served.serve(path, lambda asked: tried(roll_out(env, tasks[asked["task"]], asked["url"])))


def keep_nothing() -> None:
    """Put the folders of rollouts where they are removed with this process: a killed one leaves them behind."""
    from verifiers.v1.runtimes import subprocess

    subprocess.CACHE_DIR = Path(tempfile.gettempdir())


async def tried(rollout: Awaitable[Answer]) -> Answer:
    """The answer of a rollout, or the error of its environment."""
    try:
        return await rollout
    except Exception as error:
        return {"error": said(error)}


async def roll_out(env: Any, task: Any, url: str) -> Answer:
    """Run a task once against the model at `url`: reward, metrics, or an error."""
    from verifiers.v1.clients import EvalClientConfig, ModelContext

    client = EvalClientConfig(base_url=url, api_key_var="AGENTRL_NO_KEY")
    (slot,) = env.slots(task)
    episode = await env.run_slot(slot, ModelContext(model=MODEL, client=client))
    return {"error": trouble(episode, url)} if trouble(episode, url) else outcome(episode)


def trouble(episode: Any, url: str) -> str | None:
    """The error of an episode; None: it is fine."""
    for trace in episode.traces:
        if not trace.agent.trainable and trace.agent.config.client.base_url == url:
            name = trace.agent.name
            return f"its agent {name} is not to be trained: give it a model, `settings: {{{name}: {{client, model}}}}`"
    if episode.ok:
        return None
    failed = (trace.last_error for trace in episode.traces if not trace.ok)
    error = episode.last_error or next(filter(None, failed), None)
    return f"{error.type}: {' '.join(error.message.split())}" if error else "it failed and said nothing"


def outcome(episode: Any) -> Answer:
    """Mean reward of the agents that are trained; their rewards and metrics by name."""
    traces = [trace for trace in episode.traces if trace.agent.trainable]
    values: dict[str, list[float]] = {}
    for trace in traces:
        scores = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        for name, value in {**trace.metrics, **scores}.items():
            values.setdefault(name, []).extend([] if value is None else [float(value)])
    rewards = [trace.reward for trace in traces]
    stops = {trace.stop_condition for trace in traces}
    means = {name: sum(given) / len(given) for name, given in values.items() if given}
    return {"reward": sum(rewards) / max(1, len(rewards)), "metrics": means, "full": "max_turns" in stops}


if __name__ == "__main__":
    main()
