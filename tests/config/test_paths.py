"""Paths in a configuration: `~`, the current folder, the folder of the YAML, the shipped files."""

from pathlib import Path

import pytest

from agentrl.config import compose, resolve
from agentrl.config.schema.sft import SftConfig
from agentrl.core.errors import UserError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder; the current folder is `here` in it, and `yaml` has settings."""
    for name in ("here", "yaml"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_tilde_and_non_ascii_letters_need_no_quotes(home: Path) -> None:
    (home / "zeilen für alle.jsonl").write_text("{}\n")
    overrides = ["data.train_files=[~/zeilen für alle.jsonl]", "model.path=~/m", "trainer.default_local_dir=~/größe"]
    config = compose([*overrides, "reward.custom_reward_function.reward_kwargs={a: ~/x#1}"], checks=())
    assert config.data.train_files == [str(home / "zeilen für alle.jsonl")]
    assert (config.model.path, config.trainer.default_local_dir) == (str(home / "m"), str(home / "größe"))
    assert config.trainer.rollout_data_dir == str(home / "größe/rollouts")
    assert config.reward.custom_reward_function.reward_kwargs == {"a": "~/x#1"}, "a key of the user's own stays"


def test_the_choice_of_a_row_source_needs_no_quotes(home: Path) -> None:
    sources = "swe:a.jsonl?broken=skip&memory_mb=4096", "tasks:F?name=fix-*"
    files = f"data.train_files=[{','.join(sources)}]", f"data.val_sets={{a: {{files: [x,{sources[1]}]}}}}"
    config = compose(list(files), checks=())
    settled = [source.replace(":", f":{home / 'here'}/") for source in sources]
    assert (config.data.train_files, config.data.val_sets["a"].files) == (settled, ["x", settled[1]])


def test_paths_do_not_move_with_the_current_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "here/loss.py").write_text("")
    (home / "here/own").mkdir()
    overrides = ["actor.policy_loss.loss_mode=vanilla", "data.val_files=tasks:own", "data.row_sampler=shuffled"]
    config = compose([*overrides, "model.external_lib=loss.py", "trainer.experiment_name=x"], checks=())
    monkeypatch.chdir(home)
    assert config.trainer.default_local_dir == str(home / "here/runs/x")
    assert config.model.external_lib == str(home / "here/loss.py")
    assert config.data.val_files == f"tasks:{home}/here/own"


def test_a_file_of_the_yamls_folder_is_found_and_both_folders_are_named(home: Path) -> None:
    (home / "yaml/tools.yaml").write_text("tools: []\n")
    (home / "yaml/own.yaml").write_text(
        "defaults: [train, _self_]\nrollout: {multi_turn: {enable: true, tool_config_path: tools.yaml}}\n"
    )
    where = {"config_name": "own", "config_dir": str(home / "yaml")}
    assert compose(checks=(), **where).rollout.multi_turn.tool_config_path == str(home / "yaml/tools.yaml")
    (home / "here/tools.yaml").write_text("tools: []\n")
    assert compose(checks=(), **where).rollout.multi_turn.tool_config_path == str(home / "here/tools.yaml")
    with pytest.raises(UserError) as caught:
        compose(["data.train_files=no.jsonl", "model.path=a/b"], **where)
    assert f"(looked in {home}/here and {home}/yaml and " in str(caught.value)


@pytest.mark.parametrize("path", ["s3://b/x", "hdfs://n/x", "gs://b/x"])
def test_urls_stay(path: str) -> None:
    config = compose([f"data.train_files={path}", f"trainer.default_hdfs_dir={path}", f"model.path={path}"], checks=())
    assert (config.data.train_files, config.trainer.default_hdfs_dir, config.model.path) == (path,) * 3


def test_sft_writes_where_it_started(home: Path) -> None:
    config = resolve(["trainer.output_dir=~/warm"], config_name="sft", schema=SftConfig, checks=()).config
    assert config.trainer.output_dir == str(home / "warm")


@pytest.mark.parametrize("path", ["models/smol", "runs/a/final", "./none", "mine/smol", "~/smol"])
def test_a_local_looking_model_that_is_missing_is_no_hub_id(path: str, home: Path) -> None:
    (home / "here/mine").mkdir()
    (home / "here/rows.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"^model\.path: .* does not exist: there is no such folder in "):
        compose([f"model.path={path}", "data.train_files=rows.jsonl"])
    compose(["model.path=org/name", "data.train_files=rows.jsonl"])


def test_the_home_of_an_unknown_user_is_one_line(home: Path) -> None:
    (home / "here/rows.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"^model\.path: ~nobody_at_all/m does not exist"):
        compose(["model.path=~nobody_at_all/m", "data.train_files=rows.jsonl"])
