"""Finding runs and their dumps."""

import json
import shutil

import pytest

from agentrl.core.errors import UserError
from agentrl.tracking.dumps.jsonl import load_trajectories
from agentrl.view.runs import find_runs, find_trajectory


def test_a_run_and_its_dumps(run):
    (found,) = find_runs([str(run)])
    assert found.name == "run"
    assert list(found.dumps("rollout")) == [1, 2, 3]
    assert found.dumps("validation")[2] == run / "validation/2.jsonl"


def test_a_folder_of_runs_gives_each_a_name_of_its_own(tmp_path, run):
    for place in ("a/0/run", "a/1/run", "b"):
        shutil.copytree(run, tmp_path / place)
    assert [r.name for r in find_runs([str(tmp_path / "a")])] == ["0/run", "1/run"]
    twice = [str(tmp_path / "a/0/run"), str(tmp_path / "a"), str(tmp_path / "b")]
    assert [r.name for r in find_runs(twice)] == ["run", "a/1/run", "b"]
    same = [str(tmp_path / "a/0/run"), str(tmp_path / "a/1/run")]
    assert [r.name for r in find_runs(same)] == same


def test_a_single_dump_and_a_folder_of_dumps(tmp_path, run):
    shutil.copy(run / "rollouts/2.jsonl", tmp_path / "looked.jsonl")
    (single,) = find_runs([str(tmp_path / "looked.jsonl")])
    assert (single.dumps("rollout"), single.dumps("validation")) == ({0: tmp_path / "looked.jsonl"}, {})
    shutil.copytree(run / "rollouts", tmp_path / "dumps")
    (folder,) = find_runs([str(tmp_path / "dumps")])
    assert list(folder.dumps("rollout")) == [1, 2, 3]


def test_dumps_where_the_config_puts_them_and_where_a_copy_has_them(tmp_path, run):
    shutil.copytree(run, tmp_path / "run")
    config = tmp_path / "run/config.yaml"
    shutil.move(tmp_path / "run/rollouts", tmp_path / "far")
    config.write_text(f"trainer:\n  rollout_data_dir: {tmp_path / 'far'}\n")
    assert list(find_runs([str(tmp_path / "run")])[0].dumps("rollout")) == [1, 2, 3]
    shutil.move(tmp_path / "far", tmp_path / "run/mine")
    config.write_text("trainer:\n  rollout_data_dir: /somewhere/else/mine\n")
    assert list(find_runs([str(tmp_path / "run")])[0].dumps("rollout")) == [1, 2, 3]


def test_a_run_that_was_set_aside_does_not_show_the_dumps_of_the_one_in_its_place(tmp_path, run, monkeypatch):
    shutil.copytree(run, tmp_path / "run")
    aside = tmp_path / "run/checkpoints/superseded_1"
    aside.mkdir(parents=True)
    shutil.copy(run / "metrics.jsonl", aside)
    trainer = {"default_local_dir": "run", "rollout_data_dir": "run/rollouts", "validation_data_dir": "run/validation"}
    (aside / "config.yaml").write_text(json.dumps({"trainer": trainer}))
    monkeypatch.chdir(tmp_path)
    (found,) = find_runs([str(aside)])
    assert (found.dumps("rollout"), found.dumps("validation")) == ({}, {})


def test_what_is_no_run(tmp_path):
    with pytest.raises(UserError, match=r"none: no such folder; name a run's folder"):
        find_runs([str(tmp_path / "none")])
    with pytest.raises(UserError, match="no run in there"):
        find_runs([str(tmp_path)])


@pytest.mark.parametrize(
    "config", ["trainer: 3\n", "trainer: [a]\n", "trainer: {rollout_data_dir: [1]}\n", "- 1\n", "\0"]
)
def test_a_configuration_that_is_none(tmp_path, config):
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "config.yaml").write_text(config)
    (found,) = find_runs([str(tmp_path)])
    assert found.dumps("rollout") == {}


def test_a_trajectory_is_found_by_run_and_key(make_run):
    folder = make_run()
    key = load_trajectories(folder / "rollouts/2.jsonl")[3]["key"]
    for address in (f"{folder}/{key}", f"{folder}/rollouts/2.jsonl/{key}"):
        assert find_trajectory(address)["key"] == key
    with pytest.raises(UserError, match=r"has no trajectory '9/nobody/0'"):
        find_trajectory(f"{folder}/9/nobody/0")
