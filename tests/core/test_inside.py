"""Paths and texts of a folder that another person made."""

import os
from pathlib import Path

import pytest

from agentrl.core.errors import UserError
from agentrl.core.inside import check_links, inside, read_inside


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("the host's")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/text").write_text("mine")
    return tmp_path / "mine"


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../outside", "link", "folder/outside", "a\0b"])
def test_paths_that_lead_out(name: str, folder: Path) -> None:
    (folder / "link").symlink_to("../outside")
    (folder / "folder").symlink_to("..")
    with pytest.raises(UserError, match="is outside of"):
        read_inside(folder / name, folder)


def test_paths_that_do_not(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to("text")
    (tmp_path / "elsewhere").symlink_to(folder)
    assert read_inside(tmp_path / "elsewhere/link", folder) == read_inside(folder / "../mine/text", folder) == "mine"
    assert inside(folder, folder) == folder
    (folder / "out").symlink_to("../outside")
    assert inside(folder / "out", folder, links=False) == folder / "out"


def test_links_of_a_folder(folder: Path) -> None:
    (folder / "container").symlink_to("/no/such/place")
    (folder / "endless").symlink_to("endless")
    check_links(folder)
    (folder / "deep").mkdir()
    (folder / "deep/out").symlink_to("../../outside")
    with pytest.raises(UserError, match=r"deep/out' is outside of"):
        check_links(folder)


def test_texts_are_small_files_in_utf_8(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with (folder / "large").open("wb") as file:
        file.truncate(1 << 40)
    (folder / "latin").write_bytes(b"\xe9")
    for name, line in (("pipe", "is no file"), ("large", "more than 16 MiB"), ("latin", "utf-8"), ("none", "no file")):
        with pytest.raises(UserError, match=line):
            read_inside(folder / name, folder)
    assert read_inside(folder / "latin", folder, errors="replace") == "\ufffd"
