"""Landlock has no mounts, so each slot has a work folder of its own: a fork of the warm interpreter gets its path."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentrl_sandbox.errors import UsageError
from agentrl_sandbox.isolation.landlock import Landlock
from agentrl_sandbox.job import Job, Limits
from agentrl_sandbox.pool import Pool
from agentrl_sandbox.zygote.path_patch import PathPatch, _Memory, _wide_strings
from tests.sandbox.attacks.launch import interpreter
from tests.sandbox.test_fidelity import PROGRAMS, STDIN

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
LONG = Limits(wall=60)
NO_SHARED_MEMORY = ("pool", "spawn")
"""Programs that need what this tier cannot give, however they are started."""
SHOWN = """\
import os, site, sys, tempfile
print(__file__, sys.path[0], os.getcwd(), os.environ["HOME"], tempfile.gettempdir(), os.path.expanduser("~"))
print(sys._getframe().f_code.co_filename, site.USER_BASE, sys.path_importer_cache.get(__file__, 0))
print(open("/proc/self/cmdline").read().split("\\0")[1], "HOME=" + os.getcwd() in open("/proc/self/environ").read())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def landlock() -> AsyncIterator[Pool]:
    pool = Pool(isolation="landlock", slots=3, python=interpreter())
    try:
        await pool.start()
    except UsageError as error:
        pytest.skip(str(error))
    yield pool
    await pool.close()


async def test_no_interpreter_is_started_for_a_run(landlock: Pool) -> None:
    """A fork has the modules that the warm interpreter had imported, but for the sandbox's own."""
    code = "import sys; print('dataclasses' in sys.modules, any('agentrl' in m for m in sys.modules))"
    runs = (await landlock.run(Job("python", code, [b"", b""], run_limits=LONG))).runs
    assert [run.stdout for run in runs] == [b"True False\n"] * 2
    assert landlock.forks
    count = landlock.supervisor and landlock.supervisor.count
    await landlock.run(Job("python", code, run_limits=LONG))
    assert count == (landlock.supervisor and landlock.supervisor.count), "nor a job supervisor"


async def test_a_run_is_what_python_makes_of_the_file(landlock: Pool, tmp_path: Path) -> None:
    for name, program in PROGRAMS.items():
        if name in NO_SHARED_MEMORY:
            continue
        code = program.encode("latin-1" if name == "cookie" else "utf-8")
        job = Job("python", code.decode(errors="surrogateescape"), [STDIN], run_limits=LONG)
        ours = (await landlock.run(job)).runs[0]
        folder = tmp_path / re.sub(r"\W", "-", name)
        folder.mkdir()
        real = bare(folder, code, landlock)
        assert (ours.return_code, plain(ours.stdout), plain(ours.stderr)) == (
            real.returncode,
            plain(real.stdout.replace(str(folder).encode(), b"/box")),
            plain(real.stderr.replace(str(folder).encode(), b"/box")),
        ), name


def bare(folder: Path, code: bytes, pool: Pool) -> "subprocess.CompletedProcess[bytes]":
    """`python main.py` beside it."""
    (folder / "main.py").write_bytes(code)
    return subprocess.run(
        [interpreter(), "main.py"],
        cwd=folder,
        input=STDIN,
        capture_output=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**pool.config["env"], "PYTHONDONTWRITEBYTECODE": ""},
    )


def plain(text: bytes) -> bytes:
    """Without addresses in memory, and with one name for every slot's folder."""
    return re.sub(rb"0x[0-9a-f]+", b"0x", re.sub(rb"/[^\s'\"]*agentrl-sandbox-\w+/\d{6}/box", b"/box", text))


async def test_every_slot_shows_its_own_path_and_no_other(landlock: Pool) -> None:
    """Where the first slots are taken by sessions, runs get others."""
    sessions = [await landlock.session(LONG) for _ in range(5)]
    places = set()
    for session in sessions:
        shown = (await session.run("import os; os.getcwd()")).stdout.decode().strip().strip("'")
        assert (await session.run("os.environ['HOME'] == os.getcwd()")).stdout == b"True\n"
        places.add(shown)
    assert len(places) == 5
    if landlock.supervisor is not None:
        landlock.supervisor.close_idle()
    run = (await landlock.run(Job("python", SHOWN, run_limits=LONG))).runs[0]
    for session in sessions:
        await session.close()
    assert run.stderr == b""
    text = run.stdout.decode()
    found = set(re.findall(r"agentrl-sandbox-\w+/(\d{6})", text))
    assert len(found) == 1, text
    (own,) = found
    assert not any(f"/{own}/" in place for place in places)
    file, path, cwd, home, tmp, user = text.split("\n")[0].split()
    assert file == f"{path}/main.py"
    assert path == cwd == home == user
    assert tmp == path.removesuffix("box") + "tmp"
    assert text.split("\n")[1].endswith(" None")
    assert text.split("\n")[2].endswith(" True")


async def test_nothing_of_a_run_stays_for_the_next_in_its_slot(landlock: Pool) -> None:
    leave = (
        "import os, tempfile\nopen('left', 'w').write('x'); open(tempfile.gettempdir() + '/left', 'w').write('x')\n"
        "os.environ['LEFT'] = 'x'\nif os.fork() == 0: os.execvp('sleep', ['sleep', '86400.5'])"
    )
    look = "import os, tempfile; print(os.listdir(), os.listdir(tempfile.gettempdir()), 'LEFT' in os.environ)"
    for _ in range(3):
        await landlock.run(Job("python", leave, run_limits=LONG))
        seen = (await landlock.run(Job("python", look, run_limits=LONG))).runs[0]
        assert seen.stdout == b"['main.py'] [] False\n"


async def test_the_folders_of_a_run_are_new(landlock: Pool) -> None:
    """What a run does to the folders themselves does not stay either: mode, times, attributes."""
    leave = (
        "import os, tempfile\nfor folder in ('.', tempfile.gettempdir()):\n    os.utime(folder, (1, 1))\n"
        "    try: os.setxattr(folder, 'user.left', b'x')\n    except OSError: pass\n    os.chmod(folder, 0o1777)"
    )
    look = (
        "import os, tempfile\nfor folder in ('.', tempfile.gettempdir()):\n"
        "    about = os.stat(folder)\n    print(oct(about.st_mode), about.st_mtime > 1, os.listxattr(folder))"
    )
    for _ in range(2):
        await landlock.run(Job("python", leave, run_limits=LONG))
        seen = (await landlock.run(Job("python", look, run_limits=LONG))).runs[0]
        assert seen.stdout == b"0o40711 True []\n" * 2


async def test_what_became_of_the_files_of_a_job(landlock: Pool) -> None:
    """Each run finds them as they were, whatever the one before did to them."""
    changes = (
        "os.unlink('data'); os.mkdir('data'); open('data/x', 'w').close()",
        "os.rename('deep', 'deeper'); os.symlink('/usr', 'deep')",
        "os.unlink('data'); os.symlink('/usr', 'data')",
        "os.chmod('.', 0)",
        "os.link('data', 'other')",
        "open('data', 'a').write('y' * 9999)",
        "pass",
    )
    code = "import os\nprint(open('data').read(), open('deep/data').read(), sorted(os.listdir()))\nexec(input())"
    files = {"data": b"1", "deep/data": b"2"}
    job = Job("python", code, [f"{c}\n".encode() for c in changes], files, fetch=["data"], run_limits=LONG)
    result = await landlock.run(job)
    assert [(r.stdout, r.stderr) for r in result.runs] == [(b"1 2 ['data', 'deep', 'main.py']\n", b"")] * len(changes)
    assert result.files == {"data": b"1"}


async def test_no_name_of_a_file_is_in_the_memory_of_the_next(landlock: Pool) -> None:
    """The job supervisor, which the next run is a fork of, has looked at the folder and emptied it."""
    leave = (
        "import time\nfor number in range(300): open(f'ti' 'ger' + str(number) + 'ti' 'ger' * 9, 'w').close()\n"
        "time.sleep(0.2)"
    )
    assert await left_in_memory(landlock, leave) == [0, 0]


NAMES = """\
import ctypes, mmap, time
name = "ti" "ger"
ctypes.CDLL(None).prctl(15, f"{name}0{name}".encode(), 0, 0, 0)
kept = [open(f"{name}{number}{name}", "w+") for number in range(200)]
kept[0].truncate(60 << 20)
maps = [mmap.mmap(kept[0].fileno(), 0) for _ in range(4)]
time.sleep(0.5)
"""


@pytest.mark.prevents("a program reads data of an earlier one: in forked memory, or in its folder")
@pytest.mark.parametrize("tier", ["landlock", "namespace"])
async def test_no_name_of_a_process_or_mapping_is_in_the_memory_of_the_next(tier: str) -> None:
    """The job supervisor reads them in /proc, where it looks for memory and CPU time."""
    pool = Pool(isolation=tier, slots=1, python=interpreter())
    try:
        await pool.start()
    except UsageError as error:
        pytest.skip(str(error))
    try:
        assert await left_in_memory(pool, NAMES, Limits(wall=60, memory_mb=64)) == [0, 0]
    finally:
        await pool.close()


LOOK = """\
import re
found = set()
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        start, end = (int(x, 16) for x in re.match("(.*?)-(.*?) ", line).groups())
        if "r" in line.split()[1] and "[v" not in line:
            memory.seek(start)
            found |= set(re.findall(b"tige[r][0-9]+tige[r]", memory.read(end - start)))
print(len(found))
"""


async def left_in_memory(pool: Pool, leave: str, limits: Limits = LONG) -> list[int]:
    """How many names like tiger1tiger the next two runs find, of the same job and of another."""
    code = f"if input() == 'leave':\n    exec({leave!r})\nelse:\n    exec({LOOK!r})"
    runs = (await pool.run(Job("python", code, [b"leave\n", b"look\n"], run_limits=limits))).runs
    assert (runs[0].return_code, runs[0].limit_hit) == (0, None), runs[0]
    after = (await pool.run(Job("python", LOOK, run_limits=LONG))).runs
    return [int(run.stdout) for run in (*runs[1:], *after)]


@pytest.mark.parametrize(
    ("made", "kept", "processes"),
    [
        ("box/main.py", False, 0),
        ("box/main.py", True, 0),
        ("box/left", False, 2),
        ("box/left", True, 3),
        ("tmp/left", False, 2),
    ],
)
async def test_a_run_that_makes_no_file_costs_no_second_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, kept: bool, processes: int
) -> None:
    """Looking at its folders and emptying them would cost most of what the warm interpreter saves."""
    tier = Landlock()
    tier.slot_folder, tier.box, tier.tmp = str(tmp_path), str(tmp_path / "box"), str(tmp_path / "tmp")
    looks = []
    monkeypatch.setattr(tier, "_in_child", lambda look: looks.append(look) or look())
    for folder in (tier.box, tier.tmp):
        tier._make(folder)
    tier.expect_files(["main.py"], kept=kept)
    for name in ("box/main.py", made):
        (tmp_path / name).write_bytes(bytes(1 << 20))
    assert tier.disk_exceeded(Limits(disk_mb=0), ended=True)
    assert not tier.disk_exceeded(Limits(disk_mb=3), ended=True)
    assert os.listdir(tier.box) or not kept
    tier.clean_up()
    assert [sorted(os.listdir(folder)) for folder in (tmp_path, tier.box, tier.tmp)] == [["box", "tmp"], [], []]
    tier.clean_up()
    assert len(looks) == processes


async def test_an_interpreter_that_keeps_its_path_elsewhere_is_not_forked(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="0 addresses"):
        PathPatch(str(tmp_path), f"{tmp_path}/box/main.py")


async def test_what_the_interpreter_was_started_with_is_found() -> None:
    """Of this very process: the first argument, which its state lists."""
    found = list(_wide_strings(sys.orig_argv[0]))
    assert found
    memory = _Memory()
    for address in found:
        assert memory.rest(address) > 0
        assert ctypes.wstring_at(address) == sys.orig_argv[0]
    assert memory.rest(1) == 0
    assert memory.words(1, 1) == ()
