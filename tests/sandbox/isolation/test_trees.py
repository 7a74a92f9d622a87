"""Folders that hostile programs filled."""

import os
from pathlib import Path

import pytest

from agentrl.sandbox.isolation.trees import clear, deleted_but_open, size


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
