"""Folders that hostile programs filled."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl_sandbox.isolation.folder_contents import clear, deleted_but_open, size, size_of_files


def deep(folder: Path, levels: int) -> None:
    here = os.getcwd()
    os.chdir(folder)
    for _ in range(levels):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(here)


def test_size_counts_blocks_and_entries_and_follows_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(bytes(1 << 20))
    (tmp_path / "link").symlink_to("/usr")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    taken, entries = size(str(tmp_path), 100)
    assert (1 << 20) <= taken < (1 << 20) + 65536
    assert entries == 4
    assert size(str(tmp_path), 1)[1] <= 4


def test_a_tree_too_deep_to_have_a_path_is_no_size(tmp_path: Path) -> None:
    deep(tmp_path, 2100)
    with pytest.raises(OSError, match="name too long"):
        size(str(tmp_path), 10_000)
    clear(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_clear_leaves_what_links_point_to_and_where_it_started(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    (outside / "kept").touch()
    (inside / "locked" / "deeper").mkdir(parents=True)
    (inside / "locked" / "deeper" / "file").touch()
    (inside / "link").symlink_to(outside)
    os.mkfifo(inside / "fifo")
    (inside / "locked" / "deeper").chmod(0)
    (inside / "locked").chmod(0)
    inside.chmod(0)
    here = os.getcwd()
    clear(str(inside))
    assert os.getcwd() == here
    assert list(inside.iterdir()) == []
    assert (outside / "kept").exists()


def test_files_without_a_name_count(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        assert deleted_but_open([os.getpid()]) < 1 << 20
        os.unlink(tmp_path / "file")
        assert deleted_but_open([os.getpid()]) >= 1 << 20


def test_the_size_of_files_that_are_alone(tmp_path: Path) -> None:
    names = ["main.py", "a name " + "n" * 240, "gone"]
    for name in names[:2]:
        (tmp_path / name).write_bytes(bytes(10_000))
    assert 20_000 <= (size_of_files(str(tmp_path), names) or 0) < 40_000
    assert size_of_files(str(tmp_path), names) == size(str(tmp_path), 9)[0]
    assert size_of_files(str(tmp_path), names[:1]) is None
    (tmp_path / "empty").mkdir()
    assert size_of_files(str(tmp_path / "empty"), ["main.py"]) == 0


def test_many_files_are_counted(tmp_path: Path) -> None:
    names = [f"{number}-{'n' * 200}" for number in range(500)]
    for name in names:
        (tmp_path / name).touch()
    assert size_of_files(str(tmp_path), names) == 0
    assert size_of_files(str(tmp_path), names[1:]) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda file: (file.parent / ".").joinpath("...").touch(),
        lambda file: os.link(file, file.parent / "link"),
        lambda file: (file.unlink(), file.mkdir()),
        lambda file: (file.unlink(), file.symlink_to("/usr/bin/env")),
        lambda file: (file.unlink(), os.mkfifo(file)),
        lambda file: file.rename(file.parent / "other"),
        lambda file: (file.parent / "folder").mkdir(),
    ],
)
def test_files_that_are_not_alone(tmp_path: Path, change: Callable[[Path], object]) -> None:
    (tmp_path / "main.py").write_text("x")
    change(tmp_path / "main.py")
    assert size_of_files(str(tmp_path), ["main.py"]) is None


def test_files_in_folders_are_never_alone(tmp_path: Path) -> None:
    """The folder may hold others, or be a link that the program made."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "main.py").touch()
    assert size_of_files(str(tmp_path), ["a/main.py"]) is None
