"""Findings about the machines of a cluster."""

from pathlib import Path

import pytest

pytest.importorskip("ray")

from agentrl.doctor.cluster import FOLDER, SIZE, machines, speeds, state_of

FACTS = {"torch": "2.13.0", "driver": "590.1", FOLDER: "shared", "clock": "right"}


def texts(found) -> list[tuple[str, str]]:
    return [(finding.level, finding.text) for _, finding in found]


def test_equal_machines_are_fine() -> None:
    found = texts(machines({"10.0.0.1": FACTS, "10.0.0.2": FACTS}))
    assert {level for level, _ in found} == {"ok"}
    assert found[0][1] == "2: 10.0.0.1, 10.0.0.2"


def test_each_difference_is_named() -> None:
    other = FACTS | {"torch": "2.12.0", FOLDER: "another folder", "clock": "+3.0 s"}
    found = list(machines({"a": FACTS, "b": other}))
    assert [text for level, text in texts(found) if level == "problem"] == [
        "torch: 2.12.0 on b, not 2.13.0",
        f"{FOLDER}: another folder on b, not shared",
        "clock: +3.0 s on b, not right",
    ]
    assert len({finding.fix for _, finding in found if finding.fix}) == 3


def test_a_folder_that_no_machine_can_use_is_a_problem() -> None:
    facts = FACTS | {FOLDER: "Permission denied"}
    assert ("problem", f"{FOLDER}: Permission denied on a, not shared") in texts(machines({"a": facts}))


def test_a_slow_machine_and_a_slow_link_are_named() -> None:
    seconds = [[0.1, 0.2, 0.01, 0.0, 0.3], [0.1, 0.2, 0.01, 0.01, 0.0], [0.4, 0.2, 0.0, 0.01, 0.3]]
    ring, products, links = texts(speeds(["a", "b", "c"], seconds))
    assert ring[0] == "ok"
    assert products == ("warning", "c: 2.50 products/s, not 10.00")
    assert links == ("warning", f"c to a: {SIZE / 0.3e9:.2f} GB/s, not {SIZE / 0.01e9:.2f}")


def test_ranks_of_one_machine_have_no_link() -> None:
    assert len(list(speeds(["a"], [[0.1, 0.2], [0.1, 0.2]]))) == 2


def test_the_state_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "mark").touch()
    assert state_of(tmp_path / "mark") == "shared"
    assert state_of(tmp_path / "other") == "another folder"
    assert state_of(tmp_path / "none" / "mark") == "No such file or directory"
    assert [path.name for path in tmp_path.iterdir()] == ["mark"]
