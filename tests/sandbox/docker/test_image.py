"""The image, built for real and run in the ways that people run it: what it serves, and how it is shut in."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from sandbox_fusion import RunCodeRequest, run_code

from agentrl_sandbox.languages import RECIPES
from tests.sandbox.docker.conftest import ANY_PORT, TIER, Served, readme_command, run
from tests.sandbox.docker.engine import Engine
from tests.waiting import wait_for

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]
LANGUAGES = {"core": {"python", "pytest", "bash", "cpp", "nodejs", "perl"}, "extra": set(RECIPES)}[TIER]


def isolation(served: Served) -> str:
    return str(served.get("/health")["isolation"])


def test_each_way_finds_its_tier_and_says_so(composed: Served, plain: Served) -> None:
    assert (isolation(composed), isolation(plain)) == ("namespace", "landlock")
    assert "isolation: namespace" in composed.logs()
    probe = plain.get("/health")["probes"][0]
    assert (probe["tier"], probe["ok"]) == ("namespace", False)
    for flag in ("seccomp=sandbox/seccomp.json", "systempaths=unconfined"):
        assert flag in probe["fix"]
        assert flag in plain.logs()


def test_the_command_of_the_readme(engine: Engine, image: str) -> None:
    with run(engine, *readme_command(), *ANY_PORT) as served:
        assert isolation(served) == "namespace"


def test_root_in_a_container_with_default_flags(engine: Engine, image: str) -> None:
    with run(engine, *ANY_PORT, "--user", "0:0") as served:
        assert isolation(served) == "landlock"
        code = "import os; print(os.getuid() != 0, os.path.exists('/root') and os.access('/root', os.R_OK))"
        assert ask(served, "python", code) == "True False\n"


def ask(served: Served, language: str, code: str, stdin: str = "") -> str:
    """Standard output, by the client that people have."""
    request = RunCodeRequest(code=code, language=language, stdin=stdin, run_timeout=60, compile_timeout=60)
    answer = run_code(request, endpoint=served.url, max_attempts=1)
    assert answer.run_result is not None, answer
    assert answer.run_result.stdout is not None
    return str(answer.run_result.stdout) if answer.status == "Success" else f"{answer!r}"


def test_packages_and_work_folder(served: Served) -> None:
    code = "import numpy, scipy, pandas, sympy, os; print(numpy.eye(300).dot(numpy.eye(300)).sum(), os.listdir())"
    assert ask(served, "python", code) == "300.0 ['main.py']\n"


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_languages(served: Served, language: str) -> None:
    recipe = RECIPES[language]
    assert recipe.expected.decode() in ask(served, language, recipe.hello, recipe.stdin.decode())


def test_languages_are_those_of_the_tier(served: Served) -> None:
    assert set(served.get("/health")["languages"]["available"]) == LANGUAGES


def test_it_is_healthy(served: Served) -> None:
    def healthy() -> bool:
        return bool(served.engine.inspect(served.name)["State"]["Health"]["Status"] == "healthy")

    assert wait_for(healthy)


def test_the_server_has_no_rights(composed: Served) -> None:
    lines = composed.inside("cat", "/proc/1/status").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert status["Uid"].split() == ["10001"] * 4
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_nothing_can_be_written_but_tmp(composed: Served) -> None:
    look = "for d in / /usr /opt/agentrl /srv /etc /var /home /dev/shm /tmp; do touch $d/x 2>/dev/null && echo $d; done"
    assert composed.inside("bash", "-c", f"{look}; true").split() == ["/dev/shm", "/tmp"]


def test_no_program_gives_rights(plain: Served) -> None:
    assert plain.inside("find", "/usr", "/opt", "/bin/", "-xdev", "-perm", "/6000", "-type", "f").split() == []


def test_it_is_limited(composed: Served) -> None:
    limits = composed.engine.inspect(composed.name)["HostConfig"]
    assert (limits["Memory"], limits["MemorySwap"], limits["PidsLimit"]) == (8 << 30, 8 << 30, 4096)
    assert limits["ReadonlyRootfs"]
    assert not limits["Privileged"]


@pytest.fixture(scope="module")
def outside() -> Iterator[str]:
    """Address of a host beyond this one: a network namespace behind a route, with a port open."""
    space, address = "agentrl-outside", "198.51.100.2"
    ip = (
        ("netns", "add", space),
        ("link", "add", "agentrl-out", "type", "veth", "peer", "name", "eth0", "netns", space),
        ("address", "add", "198.51.100.1/30", "dev", "agentrl-out"),
        ("link", "set", "agentrl-out", "up"),
        ("-n", space, "address", "add", f"{address}/30", "dev", "eth0"),
        ("-n", space, "link", "set", "eth0", "up"),
        ("-n", space, "route", "add", "default", "via", "198.51.100.1"),
    )
    subprocess.run(["ip", "netns", "delete", space], capture_output=True)
    made = [subprocess.run(["ip", *words], capture_output=True, text=True) for words in ip]
    failed = [done.stderr for done in made if done.returncode]
    if failed:
        pytest.skip(f"no network namespace for a host outside: {failed[0]}")
    listen = "import socket, time; s = socket.create_server(('', 9)); print(flush=True); time.sleep(1e6)"
    with subprocess.Popen(["ip", "netns", "exec", space, "python3", "-c", listen], stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        listener.stdout.readline()
        yield address
        listener.kill()
    subprocess.run(["ip", "netns", "delete", space], check=True)


def test_the_server_has_no_way_out(composed: Served, plain: Served, outside: str) -> None:
    reach = (
        f"import socket, sys\ns = socket.socket(); s.settimeout(5)\ntry: s.connect(({outside!r}, 9))\n"
        "except OSError as error: print('closed')\nelse: print('open')"
    )
    assert plain.inside("python3", "-c", reach) == "open\n"
    assert composed.inside("python3", "-c", reach) == "closed\n"


def test_without_a_token_it_makes_one(engine: Engine, image: str) -> None:
    with run(engine, *ANY_PORT, options=()) as served:
        token = served.logs().partition("token: ")[2].split()[0]
        assert len(token) == 48
        assert status_of(served, {}) == 401
        assert status_of(served, {"Authorization": f"Bearer {token}"}) == 200


def status_of(served: Served, headers: dict[str, str]) -> int:
    body = json.dumps({"language": "python", "code": "print(1)"}).encode()
    headers = {"Content-Type": "application/json", **headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(served.url + "/run_code", body, headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_sigterm_stops_the_container(engine: Engine, image: str) -> None:
    with run(engine, *ANY_PORT) as served:
        assert ask(served, "python", "print(6 * 7)") == "42\n"
        engine.docker("stop", "--time", "20", served.name)
        assert engine.inspect(served.name)["State"]["ExitCode"] == 0


def test_the_image_holds_no_settings_of_the_build(engine: Engine, image: str) -> None:
    history = engine.docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image)
    assert "index-url" not in history
    look = "ls -A /run/secrets 2>/dev/null; true"
    found = engine.docker("run", "--rm", "--user", "0", "--entrypoint", "sh", image, "-c", look)
    assert found == ""
