"""The seccomp profile: its file is what the generator writes, and it allows what Docker's own does at most.

What it adds is needed, call by call.
"""

import copy
import json
import platform
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.docker import probe
from tests.sandbox.docker.conftest import IMAGE
from tests.sandbox.docker.engine import REPO, Engine, Unavailable

GENERATOR = runpy.run_path(str(REPO / "sandbox" / "seccomp.py"))
EPERM, ENOSYS = "1", "38"
ADDED = {
    56: "clone",
    155: "pivot_root",
    165: "mount",
    166: "umount2",
    170: "sethostname",
    272: "unshare",
    442: "mount_setattr",
}
OWN_NAMESPACES = 0x7E020000


def test_the_file_is_what_the_generator_writes() -> None:
    assert (REPO / "sandbox" / "seccomp.json").read_text() == GENERATOR["text"]()


def test_every_added_call_has_its_reason_in_the_file() -> None:
    rules = json.loads((REPO / "sandbox" / "seccomp.json").read_text())["syscalls"]
    told = {rule["names"][0] for rule in rules if rule.get("comment")}
    assert told == set(GENERATOR["ADDED"]) == set(ADDED.values())


def answers(engine: Engine, *flags: str) -> dict[str, str]:
    """What a container without capabilities is told, call by call."""
    own = ("run", "--rm", "--interactive", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    with engine.open(*own, *flags, "--entrypoint", "python3", IMAGE, "-") as process:
        told, _ = process.communicate(Path(probe.__file__).read_text(), timeout=600)
    return dict(line.split() for line in told.splitlines())


@pytest.mark.docker
@pytest.mark.timeout(1800)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the probe knows x86-64's numbers")
def test_it_allows_what_docker_allows_at_most(engine: Engine, image: str) -> None:
    kernel = answers(engine, "--security-opt", "seccomp=unconfined")
    dockers = answers(engine)
    ours = answers(engine, "--security-opt", f"seccomp={REPO / 'sandbox' / 'seccomp.json'}")
    assert kernel.keys() == dockers.keys() == ours.keys()
    # An engine does not know the newest calls, and says so; the kernel itself refuses some to whom has no capability.
    refused = {call for call in kernel if dockers[call] != kernel[call] and dockers[call] != ENOSYS}
    assert len(refused) > 20
    opened = {call.partition("(")[0] for call in refused if ours[call] not in (EPERM, ENOSYS)}
    assert opened <= set(map(str, ADDED))
    assert {"56", "165", "166", "272", "442"} <= opened
    withheld = {call for call in kernel if dockers[call] == kernel[call] != ours[call]}
    assert withheld <= WITHHELD_HERE, "programs that run in Docker would miss these"


WITHHELD_HERE = {
    *("41", "41(0x26)", "41(0x28)", "101", "154", "159", "214", "215", "301", "303", "305", "329", "330", "331"),
    *("310", "311", "425", "426", "427", "447", "448", "450", "453", "459", "460", "461", "435", "457", "458"),
}
"""ptrace, odd socket families, io_uring, clocks, memory keys and the like, and what not every engine allows."""


def without(call: str) -> dict[str, Any]:
    """The profile less an addition; of clone the part that makes namespaces, for everybody needs the rest."""
    profile: dict[str, Any] = copy.deepcopy(GENERATOR["profile"]())
    (rule,) = [rule for rule in profile["syscalls"] if rule["names"] == [call]]
    if call == "clone":
        rule["args"] = [{"index": 0, "value": OWN_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
    else:
        profile["syscalls"].remove(rule)
    return profile


@pytest.mark.docker
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("call", ["nothing", *sorted(ADDED.values())])
def test_every_added_call_is_needed(engine: Engine, image: str, tmp_path: Path, call: str) -> None:
    profile = tmp_path / "seccomp.json"
    profile.write_text(json.dumps(GENERATOR["profile"]() if call == "nothing" else without(call)))
    flags = ("--cap-drop", "ALL", "--security-opt", f"seccomp={profile}", "--security-opt", "systempaths=unconfined")
    program = "echo 'print(6 * 7)' > /tmp/main.py; agentrl-sandbox run --isolation namespace /tmp/main.py"
    words = ("run", "--rm", *flags, "--entrypoint", "sh", IMAGE, "-c", program)
    if call == "nothing":
        assert engine.docker(*words) == "42\n"
    else:
        with pytest.raises(Unavailable, match="not permitted"):
            engine.docker(*words)
