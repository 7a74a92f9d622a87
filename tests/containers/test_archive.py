"""Archives that a hostile container sends: nothing is written outside the target."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from agentrl.containers import archive
from agentrl.containers.archive import unpack
from agentrl.core.errors import InfraError


def packed(*members: tuple[str, bytes, str]) -> list[bytes]:
    """An archive: name, type and link target, or content, of each member."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind, more in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o755
            if kind == tarfile.REGTYPE:
                member.size = len(more)
                tar.addfile(member, io.BytesIO(more.encode()))
            else:
                member.linkname = more
                tar.addfile(member)
    return [file.getvalue()]


FOLDER = ("out", tarfile.DIRTYPE, "")


@pytest.mark.parametrize(
    "members",
    [
        [("out/../../escaped", tarfile.REGTYPE, "x")],
        [("out//escaped", tarfile.REGTYPE, "x"), ("out/./../../escaped", tarfile.REGTYPE, "x")],
        [("out/up", tarfile.SYMTYPE, ".."), ("out/up/escaped", tarfile.REGTYPE, "x")],
        [("out/up", tarfile.SYMTYPE, "../.."), ("out/name", tarfile.LNKTYPE, "out/up/secret")],
        [("out/name", tarfile.LNKTYPE, "../secret"), ("out/name", tarfile.REGTYPE, "overwritten")],
        [("out/name", tarfile.LNKTYPE, "out/../secret"), ("out/name", tarfile.REGTYPE, "overwritten")],
        [("out/device", tarfile.CHRTYPE, ""), ("out/pipe", tarfile.FIFOTYPE, "")],
    ],
)
def test_nothing_leaves_the_target(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    (tmp_path / "secret").write_text("mine")
    unpack(packed(FOLDER, *members, ("out/fine", tarfile.REGTYPE, "fine")), tmp_path / "target")
    assert sorted(os.listdir(tmp_path)) == ["secret", "target"]
    assert (tmp_path / "secret").read_text() == "mine"
    assert (tmp_path / "secret").stat().st_nlink == 1
    assert (tmp_path / "target" / "fine").read_text() == "fine"
    assert all((path.is_file() and not path.is_symlink()) or path.is_dir() for path in (tmp_path / "target").rglob("*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_only_files_and_folders_are_taken(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(InfraError, match="neither a file nor a folder"):
        unpack(packed(("out", kind, "/etc/passwd")), tmp_path / "target")
    assert not list(tmp_path.iterdir())


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_FILES", 2)
    with pytest.raises(InfraError, match="more than 2 files"):
        unpack(packed(FOLDER, *((f"out/{n}", tarfile.REGTYPE, "") for n in range(9))), tmp_path / "many")
    monkeypatch.setattr(archive, "MAX_BYTES", 1000)
    with pytest.raises(InfraError, match="more than 0 MiB"):
        unpack(packed(FOLDER), tmp_path / "large")
    with pytest.raises(InfraError, match="broken"):
        unpack([b"no archive"], tmp_path / "none")
