"""Files go into the work folder and come out of it, and nothing else does."""

# ruff: noqa: E501 - a program stands on a line of its own

import os
from pathlib import Path

import pytest

from agentrl_sandbox import work_folder
from agentrl_sandbox.job import Job, Limits
from agentrl_sandbox.pool import Pool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]


async def test_files_in_and_out(pool: Pool) -> None:
    data = bytes(range(256))
    code = "import os; d = open('a/b/in.bin', 'rb').read(); os.makedirs('x/y'); open('x/y/out', 'wb').write(d[::-1])"
    job = Job("python", code, files={"a/b/in.bin": data, "empty": b""}, fetch=["x/y/out", "empty", "none"])
    result = await pool.run(job)
    assert result.runs[0].return_code == 0
    assert result.files == {"x/y/out": data[::-1], "empty": b""}


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", ".", "a/..", "x\0y", "n" * 300, "a/" + "é" * 200])
async def test_paths_that_leave_are_refused(pool: Pool, path: str) -> None:
    with pytest.raises(ValueError, match="work folder"):
        await pool.run(Job("python", "", files={path: b""}))


HOSTILE = {
    "link to a file": "os.symlink('/etc/passwd', 'out')",
    "link to a folder": "os.symlink('/etc', 'd')",
    "link that climbs": "os.symlink('../../../../etc/passwd', 'out')",
    "link to a link": "os.symlink('out', 'other'); os.symlink('/proc/self/environ', 'out')",
    "fifo": "os.mkfifo('out')",
    "socket": "import socket; s = socket.socket(socket.AF_UNIX); s.bind('out')",
    "folder": "os.mkdir('out')",
    "sparse": "open('out', 'wb').truncate(60 << 20); os.truncate('out', 60 << 20)\nos.link('out', 'o2')",
    "loop": "os.symlink('out', 'out')",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_is_no_plain_file_is_skipped(pool: Pool, name: str) -> None:
    job = Job("python", f"import os\n{HOSTILE[name]}", fetch=["out", "d/passwd", "../etc/passwd", "/etc/passwd"])
    result = await pool.run(job)
    assert result.runs[0].return_code == 0, result.runs[0].stderr
    if name == "sparse":
        assert result.files == {"out": bytes(60 << 20)}
    else:
        assert result.files == {}


async def test_a_file_without_rights_is_still_the_programs_own(pool: Pool) -> None:
    code = "import os; open('out', 'w').write('x'); os.chmod('out', 0); os.chmod('.', 0)"
    assert (await pool.run(Job("python", code, fetch=["out"]))).files in ({"out": b"x"}, {})


async def test_files_beyond_the_limits_are_an_answer_not_a_failure(pool: Pool) -> None:
    job = Job("python", "print(1)", files={"f": bytes(9 << 20)}, run_limits=Limits(disk_mb=8))
    answer = (await pool.run(job)).runs[0]
    assert answer.status == "Error"
    assert b"do not fit" in answer.stderr


async def test_many_files(pool: Pool) -> None:
    files = {f"d{i % 10}/f{i}": str(i).encode() for i in range(2000)}
    job = Job("python", "import os; print(sum(len(f) for _, _, f in os.walk('.')))", files=files, fetch=list(files))
    result = await pool.run(job)
    assert result.runs[0].stdout == b"2001\n"
    assert result.files == files


async def test_each_run_of_a_batch_has_a_fresh_folder(pool: Pool) -> None:
    code = "import os; print(sorted(os.listdir()), os.path.exists('/tmp/t'), os.listdir('/dev/shm'), open('data').read())\n"
    code += "open('data', 'w').write('spoilt'); open('main.py', 'w').write('print(0)'); open('/tmp/t', 'w'); open('/dev/shm/s', 'w')"
    result = await pool.run(Job("python", code, [b"", b"", b""], files={"data": b"good"}))
    assert [run.stdout for run in result.runs] == [b"['data', 'main.py'] False [] good\n"] * 3


async def test_collect_refuses_what_it_could_not_give_back(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"xyz")
    os.chmod(tmp_path / "d" / "f", 0o751)
    assert work_folder.collect(str(tmp_path), 3) == {"d/f": (b"xyz", 0o751)}
    assert work_folder.collect(str(tmp_path), 2) is None
    (tmp_path / "link").symlink_to("d/f")
    assert work_folder.collect(str(tmp_path), 99) is None
