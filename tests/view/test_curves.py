"""Metrics as they grow."""

import json
import math

from agentrl.view.curves import Curves


def write(path, steps, mode="a"):
    with path.open(mode) as file:
        file.writelines(json.dumps({"step": s, "x": s * 2, "nan": None}) + "\n" for s in steps)


def test_only_what_was_appended_is_read_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    curves = Curves(path)
    curves.refresh()
    assert curves.series == {}
    write(path, [1, 2])
    curves.refresh()
    with path.open("a") as file:
        file.write('{"step": 3, "x"')
    curves.refresh()
    assert curves.series == {"x": {1: 2.0, 2: 4.0}}
    with path.open("a") as file:
        file.write(": 6}\n")
    curves.refresh()
    assert (curves.series["x"], curves.last_step) == ({1: 2.0, 2: 4.0, 3: 6.0}, 3)


def test_a_file_written_anew_is_read_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2, 3])
    curves = Curves(path)
    curves.refresh()
    write(path, [1], mode="w")
    curves.refresh()
    assert curves.series["x"] == {1: 2.0}


def test_thinning_loses_no_spike(tmp_path):
    curves = Curves(tmp_path / "none")
    steps = list(range(100_000))
    values = [math.sin(step / 5000) for step in steps]
    values[54_321], values[77_777] = 9.0, -9.0
    curves.series["x"] = dict(zip(steps, values, strict=True))
    few, shown = curves.thinned("x", 1000)
    assert len(few) <= 1000
    assert few == sorted(few)
    assert dict(zip(few, shown, strict=True))[54_321] == 9.0
    assert dict(zip(few, shown, strict=True))[77_777] == -9.0


def test_a_file_in_the_place_of_another_is_read_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2])
    curves = Curves(path)
    curves.refresh()
    write(tmp_path / "new", [1, 2, 3, 4])
    (tmp_path / "new").replace(path)
    curves.refresh()
    assert list(curves.series["x"]) == [1, 2, 3, 4]


def test_figures_that_are_no_numbers_and_lines_without_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl.view.curves.LONGEST", 100)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "x": NaN, "y": Infinity, "z": 1}\n' + "x" * 1000 + '\n{"step": 2, "z": 2}\n')
    curves = Curves(path)
    curves.refresh()
    assert curves.series == {"z": {1: 1.0, 2: 2.0}}
