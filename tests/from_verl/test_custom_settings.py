"""Settings of the user's own code: where they may be written, and who reads them."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.compose import Resolved, resolve
from agentrl.config.schema import Config
from agentrl.config.schema.sft import SftConfig
from agentrl.core.errors import UserError
from agentrl.data.dataset import load_dataset
from agentrl_verl.config_views import ActorConfig, AlgoConfig, verl_config
from agentrl_verl.reading.file_check import check_sources
from agentrl_verl.reading.scripts import read_sources

pytestmark = pytest.mark.integration


def composed(*overrides: str, **how: Any) -> Resolved:
    return resolve(overrides, checks=(), **how)


def in_file(folder: Path, text: str, *overrides: str) -> Resolved:
    (folder / "own.yaml").write_text(text)
    return composed(*overrides, config_dir=str(folder), config_name="own")


def test_a_plus_adds_names_that_no_key_has() -> None:
    found = composed(
        "+my_section.key=1",
        "my_section.key=2",
        "+actor_rollout_ref.rollout.mine={depth: 3}",
        "+reward_model.mine=4",
        "rollout.n=${my_section.key}",
    )
    config, view = found.config, verl_config(found.config)
    assert config.custom == {"my_section": {"key": 2}, "reward": {"reward_model": {"mine": 4}}}
    assert (config.rollout.custom, config.rollout.n) == ({"mine": {"depth": 3}}, 2)
    assert (view.my_section.key, view.reward_model.mine) == (2, 4)
    assert view.actor_rollout_ref.rollout.mine.depth == view.rollout.mine.depth == 3
    (note,) = [note for note in found.notes if note.startswith("for your own code")]
    assert "my_section.key (here custom.my_section.key)" in note


def test_verls_room_in_a_section_is_a_key() -> None:
    config = composed("actor_rollout_ref.rollout.custom.depth=3", "custom.seen=true").config
    view = verl_config(config)
    assert view.actor_rollout_ref.rollout.custom == {"depth": 3}
    assert (view.seen, view.custom.seen) == (True, True)


def test_sections_that_functions_get_have_their_settings() -> None:
    config = composed("+algorithm.my_weight=0.5", "+actor_rollout_ref.actor.my_bound=2", "+actor.clip_ratio=0.3").config
    assert AlgoConfig(config.algorithm).my_weight == 0.5
    assert AlgoConfig(config.algorithm).get("gamma") == 1.0
    assert (ActorConfig(config.actor).my_bound, config.actor.clip_ratio) == (2, 0.3)
    written = ("algorithm.custom={my_weight: 0.5}", "actor.custom={my_bound: 2}", "actor.clip_ratio=0.3")
    assert config == composed(*written).config


def test_what_stands_outside_of_all_sections_stays_there() -> None:
    assert verl_config(Config(custom={"mine": {"key": 1}})).mine.key == 1


def test_a_key_wins_over_a_custom_setting_of_its_name() -> None:
    view = verl_config(composed("rollout.custom={n: 7, val_kwargs: {n: 9, mine: 1}}").config)
    assert (view.rollout.n, view.rollout.val_kwargs.n, view.rollout.val_kwargs.mine) == (8, 1, 1)


def test_a_dataset_class_reads_its_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Mine:\n"
        "    def __init__(self, data_files, tokenizer, config):\n"
        "        self.rows = [{'prompt': config.my_text}] * config.get('my_number')\n"
        "    def __len__(self): return len(self.rows)\n"
        "    def __getitem__(self, i): return self.rows[i]\n"
    )
    (tmp_path / "rows.jsonl").write_text("")
    data = composed(
        "data.custom={my_text: hi}", "+data.my_number=2", f"data.custom_cls.path={tmp_path}/mine.py"
    ).config.data
    data.custom_cls.name = "Mine"
    rows = load_dataset(data, str(tmp_path / "rows.jsonl"), None)
    assert [row.prompt[0]["content"] for row in rows] == ["hi", "hi"]


@pytest.mark.parametrize(
    ("override", "place"),
    [("rollout.temprature=1", "did you mean rollout.temperature?"), ("my_section.key=1", "custom.my_section.key")],
)
def test_without_a_plus_a_name_must_be_a_key(override: str, place: str) -> None:
    with pytest.raises(UserError, match="unknown key") as caught:
        composed(override)
    assert place in str(caught.value)


@pytest.mark.parametrize("override", ["+actor.optm.lr=1", "++rollout.temprature=1"])
def test_a_plus_before_a_misspelt_key_is_said(override: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown key .* did you mean"):
        composed(override)
    notes = in_file(tmp_path, "defaults: [ppo_trainer, _self_]\n", override).notes
    assert any("is no key" in note and "did you mean" in note for note in notes)


def test_files_written_for_verl_may_have_other_names(tmp_path: Path) -> None:
    text = "defaults: [ppo_trainer, _self_]\nmine: {key: 1, gone: 2}\ndata: {max_prompt_length: '${mine.key}'}\n"
    config = in_file(tmp_path, text, "mine.key=9", "~mine.gone").config
    assert (config.custom, config.data.max_prompt_length) == ({"mine": {"key": 9}}, 9)
    with pytest.raises(UserError, match=r"unknown key mine\.kye"):
        in_file(tmp_path, text, "mine.kye=9")


def test_files_of_our_own_have_a_place_for_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown key mine\.key.*custom\.mine\.key"):
        in_file(tmp_path, "defaults: [train, _self_]\nmine: {key: 1}\n")
    assert in_file(tmp_path, "defaults: [train, _self_]\ncustom: {mine: {key: 1}}\n").config.custom["mine"]["key"] == 1


def test_supervised_training_gives_them_to_the_dataset_class_alone() -> None:
    assert resolve(["+data.mine=1"], schema=SftConfig, config_name="sft", checks=()).config.data.custom == {"mine": 1}
    with pytest.raises(UserError, match=r"unknown key mine\.key"):
        resolve(["+mine.key=1"], schema=SftConfig, config_name="sft", checks=())


def test_a_base_of_ours_counts_in_a_check(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("path: /models/mine\n")
    file = tmp_path / "exp.yaml"
    file.write_text(
        "defaults: [train, {model: mine}, {override algorithm: rloo}, _self_]\ndata: {train_batch_size: 32}\n"
    )
    (checked,) = check_sources(read_sources(file))
    assert [one.given.path for one in checked.verdicts] == ["model.path", "data.train_batch_size"]
    assert not checked.stops, "train.yaml sets rollout.n=8"


@pytest.mark.parametrize(("listed", "guess"), [("trian", "train"), ("algorithm/rlo", "algorithm/rloo")])
def test_a_misspelt_default_stops_a_check(listed: str, guess: str, tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(f"defaults: [{listed}, _self_]\nrollout: {{n: 4}}\n")
    (checked,) = check_sources(read_sources(tmp_path / "exp.yaml"))
    assert checked.troubles[0].endswith(f"did you mean {guess}?")


def test_a_check_lets_through_what_a_run_does(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("defaults: [ppo_trainer, _self_]\nmine: {key: 1}\n")
    script = tmp_path / "run.sh"
    script.write_text(
        f"python3 -m verl.trainer.main_ppo --config-path={tmp_path} --config-name=own \\\n"
        "  mine.key=2 +actor_rollout_ref.actor.optm.lr=1 trainer.mine=3\n"
    )
    (source,) = read_sources(script)
    (checked,) = check_sources([source])
    kinds = {one.given.path: one.kind for one in checked.verdicts}
    assert kinds["mine.key"] == kinds["actor_rollout_ref.actor.optm.lr"] == "own"
    assert kinds["trainer.mine"] == "unknown"


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("verl.trainer.main_ppo trainer.max_staleness=-1", "trainer.max_staleness=-1"),
        ("verl.trainer.sft_trainer trainer.save_freq=often", "trainer.save_freq=often"),
    ],
)
def test_a_check_makes_the_checks_of_a_run(command: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"python3 -m {command}\n")
    (checked,) = check_sources(read_sources(tmp_path / "run.sh"))
    assert any(complaint in trouble for trouble in checked.troubles)


def test_null_leaves_a_key_of_verls_unset(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=null\n")
    (checked,) = check_sources(read_sources(tmp_path / "run.sh"))
    assert checked.verdicts[0].kind == "anyway"
