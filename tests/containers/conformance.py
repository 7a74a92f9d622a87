"""What every container provider keeps, as tests: subclass `Conformance` and give it a fixture `provider`.

`spec` describes a container with `sh` and coreutils or busybox.
"""

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.containers.contract import Container, ContainerProvider, ContainerSpec
from agentrl.core.errors import InfraError


class Conformance:
    """The tests. `started` is one container for most of them, because a start takes time."""

    @pytest.fixture
    def spec(self) -> ContainerSpec:
        return ContainerSpec()

    @pytest.fixture
    async def started(self, provider: ContainerProvider, spec: ContainerSpec) -> AsyncIterator[Container]:
        await provider.prepare(spec)
        container = provider.container(spec)
        await container.start()
        yield container
        await container.stop()

    async def test_commands(self, started: Container) -> None:
        done = await started.exec("echo out; echo err >&2; exit 3", timeout=30)
        assert (done.code, done.stdout, done.stderr) == (3, "out\n", "err\n")
        done = await started.exec(["printf", "%s|", "a b", "$HOME"], timeout=30)
        assert (done.code, done.stdout, done.stderr) == (0, "a b|$HOME|", "")
        done = await started.exec(
            'pwd; echo "$X"; wc -c', timeout=30, cwd="/tmp", env={"X": "a 'b'"}, stdin=b"x" * 300_000
        )
        assert done.stdout.split() == ["/tmp", "a", "'b'", "300000"]
        assert (await started.exec(["no-such-program"], timeout=30)).code == 127

    async def test_long_output_keeps_both_ends(self, started: Container) -> None:
        done = await started.exec("echo first; yes | head -c 3000000; echo last; printf '\\377' >&2", timeout=60)
        assert done.stdout.startswith("first\ny\n")
        assert done.stdout.endswith("y\nlast\n")
        assert len(done.stdout) < 300_000
        assert "left out" in done.stdout
        assert done.stderr == "\N{REPLACEMENT CHARACTER}"

    async def test_a_late_command_ends_with_its_children(self, started: Container) -> None:
        begin = time.monotonic()
        command = (
            "(setsid sleep 7015 &); (sleep 7011 & setsid sleep 7012 & env -i sleep 7013 & sleep 7014 | cat); echo ended"
        )
        done = await started.exec(f"echo begun; {command}", timeout=1)
        assert (done.code, done.stdout) == (None, "begun\n")
        assert time.monotonic() - begin < 60
        assert await sleeping(started) == []

    async def test_a_cancelled_command_ends(self, started: Container) -> None:
        task = asyncio.create_task(started.exec("sleep 7021", timeout=600))
        await comes_to_sleep(started)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await sleeping(started) == []

    async def test_what_runs_beside_a_late_command_stays(self, started: Container) -> None:
        await started.exec("sleep 7031 >/dev/null 2>&1 &", timeout=30)
        assert (await started.exec("sleep 7032", timeout=0.5)).code is None
        assert await sleeping(started) == ["7031"]

    async def test_files_go_both_ways(self, started: Container, tmp_path: Path) -> None:
        source = tmp_path / "source"
        (source / "deep" / "er").mkdir(parents=True)
        (source / "deep" / "run.sh").write_text("#!/bin/sh\necho it runs\n")
        (source / "deep" / "run.sh").chmod(0o755)
        await started.upload(source, "/tmp/new/place")
        await started.upload(source / "deep" / "run.sh", "/tmp/other/name.sh")
        done = await started.exec(
            "/tmp/new/place/deep/run.sh; /tmp/other/name.sh; ls -d /tmp/new/place/deep/er; ls -ld /tmp", timeout=30
        )
        assert done.stdout.startswith("it runs\nit runs\n/tmp/new/place/deep/er\ndrwxrwxrwt")
        await started.download("/tmp/new/place", tmp_path / "back")
        assert (tmp_path / "back" / "deep" / "run.sh").read_text() == "#!/bin/sh\necho it runs\n"
        await started.download("/tmp/other/name.sh", tmp_path / "far" / "one.sh")
        assert (tmp_path / "far" / "one.sh").stat().st_mode & stat.S_IXUSR
        with pytest.raises(InfraError):
            await started.download("/tmp/none", tmp_path / "none")

    async def test_no_file_leaves_the_target(self, started: Container, tmp_path: Path) -> None:
        made = "mkdir -p /tmp/bad/sub; cd /tmp/bad; echo fine >fine; ln fine same; mkfifo pipe; "
        made += "ln -s /etc out; ln -s ../.. up; ln -s /etc/passwd link; ln -s sub inside; echo x >inside/x"
        done = await started.exec(made, timeout=30)
        assert done.code == 0, done.output
        target = tmp_path / "target"
        await started.download("/tmp/bad", target)
        assert sorted(os.listdir(target)) == ["fine", "same", "sub"]
        assert sorted(os.listdir(tmp_path)) == ["target"]
        assert (target / "same").read_text() == "fine\n"
        assert (target / "sub" / "x").read_text() == "x\n"

    async def test_containers_are_apart(
        self, provider: ContainerProvider, spec: ContainerSpec, started: Container
    ) -> None:
        second = provider.container(spec)
        assert second.name != started.name
        try:
            await second.start()
            await started.exec("echo mine >/tmp/mine", timeout=30)
            assert (await second.exec("cat /tmp/mine", timeout=30)).code == 1
        finally:
            await second.stop()

    async def test_stop_ends_its_commands(self, provider: ContainerProvider, spec: ContainerSpec) -> None:
        await provider.prepare(spec)
        container = provider.container(spec)
        await container.stop()
        await container.start()
        task = asyncio.create_task(container.exec("echo begun; sleep 7041", timeout=600))
        await comes_to_sleep(container)
        await container.stop()
        await container.stop()
        with pytest.raises(InfraError):
            await task
        with pytest.raises(InfraError):
            await container.exec("true", timeout=30)


async def comes_to_sleep(container: Container) -> None:
    """Waits for a `sleep` in the container."""
    while not await sleeping(container):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def sleeping(container: Container) -> list[str]:
    """The arguments of `sleep` in the container that tests have chosen."""
    code = r"for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline; echo; done 2>/dev/null"
    words = [line.split() for line in (await container.exec(code, timeout=30)).stdout.splitlines()]
    return sorted(line[1] for line in words if len(line) == 2 and line[0] == "sleep" and line[1].startswith("70"))
