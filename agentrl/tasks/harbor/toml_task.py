"""Reads task folders in the format of Harbor and Terminal-Bench 2: `task.toml` and its folders.

Invariant: a task that cannot be run as it is written is refused in one line; a field without an effect here is a note.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.containers import ContainerSpec
from agentrl.core.errors import UserError
from agentrl.core.inside import inside, read_inside
from agentrl.tasks.harbor.compose import read_compose
from agentrl.tasks.harbor.fields import Fields, Passed
from agentrl.tasks.harbor.task import SOLUTION, TESTS, Copy, Healthcheck, Script, Separate, Task

NETWORKS = {"public": "full", "no-network": "none", "allowlist": "allow"}
"""The format's names -> those of containers."""


CANARY = re.compile(r"(?:(?:<!--.*canary.*-->|#.*canary.*)\s*\n|\s*\n)+", re.IGNORECASE)
IGNORED = ("version", "schema_version", "source", "task", "metadata", "artifacts", "multi_step_reward_strategy")
"""Fields that change nothing in how a task of one step runs, or that are read elsewhere."""


def read_toml(folder: Path, passed: Passed = ()) -> Task:
    """The task in a folder with a `task.toml`. Raises UserError."""
    file = folder / "task.toml"
    top = Fields(tomllib.loads(read_inside(file, folder)), str(file), passed=passed)
    for key in IGNORED:
        top.get(key)
    agent, verifier, environment = top.sub("agent"), top.sub("verifier"), top.sub("environment")
    _refuse(folder, top, environment)
    asked, mounts = read_compose(folder / "environment" / "docker-compose.yaml", folder, top, "main")
    spec = _spec(folder, asked, environment, agent, verifier)
    steps = tuple(_steps(folder, top, spec))
    last_counts = top.get("multi_step_reward_strategy") == "final"
    whole = Task(folder, "", spec, Script((), ""), None) if steps else _part(folder, top, spec, [folder])
    task = replace(
        whole,
        instruction=steps[0].instruction if steps else whole.instruction,
        healthcheck=_healthcheck(environment),
        files=(*_loose_files(folder, spec), *mounts),
        metadata=_metadata(top),
        offers=_offers(top, environment),
        steps=steps,
        last_counts=last_counts,
    )
    return replace(task, notes=(*top.notes, *_unused(folder, top, environment)))


def _part(folder: Path, top: Fields, spec: ContainerSpec, places: Sequence[Path]) -> Task:
    """A task, or a step of one: its agent, tests and solution. `places`: folders with files of its own, last those of
    the whole task."""
    agent, verifier = top.sub("agent"), top.sub("verifier")
    timeout = agent.number("timeout_sec", 0) or None
    separate, bundled = _separate(places, top, verifier, spec)
    return Task(
        folder=folder,
        instruction=read_instruction(folder, places[0]),
        spec=spec,
        tests=_tests(places, verifier, bundled),
        separate=separate,
        solution=_solution(places, top.sub("solution"), timeout),
        agent_timeout=timeout,
    )


def _steps(folder: Path, top: Fields, spec: ContainerSpec) -> Iterator[Task]:
    """The steps of a task. A step has the tables of the whole task, changed by its own."""
    for number, table in enumerate(top.get("steps") or ()):
        step = Fields(table, top.file, f"steps[{number}].", passed=top.passed)
        name = step.text("name") or ""
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise step.wrong("name", name, "the name of its folder in steps/")
        own = inside(folder / "steps" / name, folder)
        merged = Fields(_merged(top.values, table), top.file, step.table, passed=top.passed)
        merged.notes = step.notes = top.notes
        files, least = own / "workdir", step.get("min_reward")
        least = {"reward": least} if isinstance(least, int | float) else least or {}
        if odd := {"user", "network_mode"} & step.sub("agent").values.keys():
            top.notes.append(f"steps.agent.{min(odd)} has no effect")
        for key in ("agent", "verifier"):  # each step has them
            list(map(top.sub(key).get, top.sub(key).values))
        yield replace(
            _part(folder, merged, spec, [own, folder]),
            name=name,
            files=(Copy(files),) if files.is_dir() else (),
            healthcheck=_healthcheck(step),
            least={key: float(value) for key, value in least.items()},
        )


def _merged(whole: Mapping[str, Any], step: Mapping[str, Any]) -> dict[str, Any]:
    """The tables that hold for a step; a time limit of the tests is the step's alone."""
    agent = {**whole.get("agent", {}), **step.get("agent", {})}
    tests, own = whole.get("verifier", {}), step.get("verifier", {})
    verifier = {key: value for key, value in tests.items() if key != "timeout_sec"} | own
    verifier["env"] = {**tests.get("env", {}), **own.get("env", {})}
    verifier["collect"] = [*tests.get("collect", ()), *own.get("collect", ())]
    if "environment" in own and "environment_mode" not in own:
        verifier["environment_mode"] = "separate"
    artifacts = [*whole.get("artifacts", ()), *step.get("artifacts", ())]
    return {"agent": agent, "verifier": verifier, "artifacts": artifacts, "solution": whole.get("solution", {})}


def read_instruction(folder: Path, place: Path) -> str:
    """The text of the task or of a step, without the marks that keep benchmarks out of training data. Raises
    UserError."""
    file = place / "instruction.md"
    if not file.is_file():
        raise UserError(f"{file} is missing: write the task for the agent there")
    text = read_inside(file, folder, errors="replace")
    start = CANARY.match(text)
    text = text[start.end() :] if start else text
    if not text.strip():
        raise UserError(f"{file} is empty: write the task for the agent there")
    return text


def _refuse(folder: Path, top: Fields, environment: Fields) -> None:
    """Raises UserError for a task that needs something that is not here."""
    system = str(environment.get("os") or "linux").lower()
    if system != "linux":
        raise UserError(f"{top.file}: environment.os is {system}: only linux is supported; leave the task out")
    if (folder / "trajectory.json").exists():
        raise UserError(f"{folder}: a conversation before the task is not supported (trajectory.json)")


def _spec(folder: Path, asked: ContainerSpec, environment: Fields, agent: Fields, verifier: Fields) -> ContainerSpec:
    context = folder / "environment"
    image, build = environment.text("docker_image"), context if (context / "Dockerfile").is_file() else None
    image, build = image or asked.image, asked.build or build
    if image is None and build is None:
        raise UserError(f"{context}/Dockerfile is missing: write one, or name environment.docker_image in task.toml")
    spec = limits(environment, image, build)
    access, allowed = _network(environment, agent, verifier)
    return replace(
        asked,
        image=spec.image,
        build=spec.build,
        build_timeout=spec.build_timeout,
        network="none" if asked.network == "none" else access,
        allowed=allowed,
        workdir=spec.workdir or asked.workdir,
        env={**asked.env, **spec.env},
        user=user_of(agent),
        cpus=asked.cpus or spec.cpus,
        memory_mb=asked.memory_mb or spec.memory_mb,
        storage_mb=spec.storage_mb,
    )


def _network(environment: Fields, agent: Fields, verifier: Fields) -> tuple[str, tuple[str, ...]]:
    """The network of the container: the agent's, where the task gives agent and tests different ones."""
    own = network(environment)
    agents, tests = policy(agent) or own, policy(verifier) or own
    if agents != tests and not _is_separate(verifier):
        environment.notes.append("agent.network_mode holds for the tests too")
    return agents


def _tests(places: Sequence[Path], verifier: Fields, bundled: bool) -> Script:
    """A step's tests lie over those of the whole task."""
    folders = [place / "tests" for place in reversed(places) if (place / "tests").is_dir()]
    if not bundled and not any((tests / "test.sh").is_file() for tests in folders):
        raise UserError(f"{places[0]}/tests/test.sh is missing: it writes the reward to /logs/verifier/reward.txt")
    timeout = verifier.number("timeout_sec", 600)
    files = () if bundled else tuple(Copy(tests, TESTS) for tests in folders)
    return Script(files, f"{TESTS}/test.sh", verifier.texts("env"), user_of(verifier) or "", timeout)


def _solution(places: Sequence[Path], solution: Fields, timeout: float | None) -> Script | None:
    """None where it cannot be run: only `agentrl tasks check` needs it."""
    folder = next((place / "solution" for place in places if (place / "solution").is_dir()), places[0])
    try:
        env = solution.texts("env")
    except UserError as error:
        solution.notes.append(f"it is not solved: {error}")
        return None
    found = (folder / "solve.sh").is_file()
    return Script((Copy(folder, SOLUTION),), f"{SOLUTION}/solve.sh", env, timeout=timeout) if found else None


def _healthcheck(environment: Fields) -> Healthcheck | None:
    table = environment.sub("healthcheck")
    command, retries = table.text("command"), int(table.number("retries", Healthcheck.retries))
    known = ("interval", "timeout", "start_period", "start_interval")
    seconds = {key: table.number(f"{key}_sec", getattr(Healthcheck, key)) for key in known}
    return None if command is None else Healthcheck(command, retries=retries, **seconds)


def _loose_files(folder: Path, spec: ContainerSpec) -> tuple[Copy, ...]:
    """`environment/` of a task with a ready image, which no build copies anything of."""
    context = folder / "environment"
    described = any((context / name).exists() for name in ("Dockerfile", "docker-compose.yaml"))
    loose = spec.image and context.is_dir() and any(context.iterdir()) and not described
    return (Copy(context),) if loose else ()


def _metadata(top: Fields) -> dict[str, Any]:
    found = [top.get(key) or {} for key in ("metadata", "task")]
    metadata, named = (one if isinstance(one, dict) else {} for one in found)
    return {**metadata, "keywords": named.get("keywords")}


def _unused(folder: Path, top: Fields, environment: Fields) -> list[str]:
    environment.get("gpu_types")
    hidden = [".harborignore has no effect"] if (folder / ".harborignore").exists() else []
    hidden += ["environment.skills_dir: agent programs get it"] if environment.get("skills_dir") else []
    return [*hidden, *(f"{name} is unknown" for name in top.unread())]


def _offers(top: Fields, environment: Fields) -> dict[str, Any]:
    """Servers and skills for the agent, as `agentrl.tasks.format.TaskFormat` has them."""
    servers = {}
    for number, table in enumerate(environment.get("mcp_servers") or ()):
        server = Fields(table, top.file, f"environment.mcp_servers[{number}].", passed=top.passed)
        name, kind = server.text("name"), {"streamable-http": "http"}.get(table.get("transport"), "sse")
        if not name or not (server.text("url") or server.text("command")):
            raise server.wrong("name", name, "a name, and a url or a command")
        kept = {key: table[key] for key in ("url", "command", "args") if table.get(key)}
        headers = {"headers": server.texts("headers")} if table.get("headers") else {}
        servers[name] = kept | headers | ({"type": kind} if "url" in kept else {})
    skills = environment.text("skills_dir")
    return ({"mcp_servers": servers} if servers else {}) | ({"skills": skills} if skills else {})


def _is_separate(verifier: Fields) -> bool:
    """Whether the verifier runs in a separate container."""
    mode = verifier.text("environment_mode")
    return mode == "separate" or (mode is None and verifier.get("environment") is not None)


def _separate(
    places: Sequence[Path], top: Fields, verifier: Fields, spec: ContainerSpec
) -> tuple[Separate | None, bool]:
    """The container of the verifier's own, and whether its image has the tests."""
    if not _is_separate(verifier):
        verifier.get("collect")  # nothing is collected from the container that the tests run in
        return None, False
    environment, folders = verifier.sub("environment"), [place / "tests" for place in places]
    if found := [tests for tests in folders if (tests / "docker-compose.yaml").is_file()]:
        raise UserError(f"{found[0]}/docker-compose.yaml is not supported; leave the task out")
    given = bool(environment.values) or verifier.get("environment") is not None
    image = environment.text("docker_image")
    build = next((tests for tests in folders if (tests / "Dockerfile").is_file()), None)
    bundled = bool(image or build)
    if not bundled:
        image, build = spec.image, spec.build
    made = limits(environment, image, build) if given else replace(spec, user=None, image=image, build=build)
    access = policy(verifier) or (network(environment) if given else (spec.network, spec.allowed))
    made = replace(made, network=access[0], allowed=access[1], build=None if image else build)
    return Separate(made, _artifacts(top), _collects(verifier)), bundled


def _artifacts(top: Fields) -> tuple[str, ...]:
    """Paths in the container that the verifier gets."""
    listed = [one.get("source") if isinstance(one, dict) else one for one in top.get("artifacts") or []]
    for path in listed:
        if not isinstance(path, str) or not path.startswith("/") or ".." in path.split("/"):
            raise top.wrong("artifacts", path, "full paths in the container")
    return tuple(map(str, listed))


def _collects(verifier: Fields) -> tuple[Script, ...]:
    hooks = [Fields(one, verifier.file, "verifier.collect.") for one in verifier.get("collect") or ()]
    for hook in hooks:
        if hook.text("service") not in (None, "main"):
            raise UserError(f"{hook.file}: verifier.collect.service: one service is supported; leave the task out")
    return tuple(
        Script((), one.text("command") or "true", user=user_of(one), timeout=one.number("timeout_sec", 60))
        for one in hooks
    )


def limits(environment: Fields, image: str | None, build: Path | None) -> ContainerSpec:
    """A container of an image, or of a folder to build, with the limits of a table and no others. The image comes
    first. Raises UserError for devices that containers do not have."""
    for key in ("gpus", "tpu"):
        if environment.get(key):
            why = "containers with a GPU or TPU are not supported; leave the task out"
            raise UserError(f"{environment.file}: {environment.table}{key}: {why}")
    return ContainerSpec(
        image=image,
        build=None if image else build,
        workdir=environment.text("workdir"),
        env=environment.texts("env"),
        cpus=environment.number("cpus", 0) or None,
        memory_mb=environment.megabytes("memory_mb", "memory"),
        storage_mb=environment.megabytes("storage_mb", "storage"),
        processes=None,
        build_timeout=environment.number("build_timeout_sec", ContainerSpec.build_timeout),
    )


def network(environment: Fields) -> tuple[str, tuple[str, ...]]:
    """The network of an environment, by its field of today or the one before."""
    closed = environment.get("allow_internet") is False
    return policy(environment) or ("none" if closed else "full", ())


def policy(table: Fields) -> tuple[str, tuple[str, ...]] | None:
    mode, hosts = table.text("network_mode"), table.names("allowed_hosts")
    if mode is None:
        return None
    if mode not in NETWORKS:
        raise table.wrong("network_mode", mode, f"one of {', '.join(NETWORKS)}")
    return NETWORKS[mode], hosts


def user_of(table: Fields) -> str | None:
    """A user's name or number."""
    value = table.get("user")
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise table.wrong("user", value, "a name or a number")
    return None if value is None else str(value)
