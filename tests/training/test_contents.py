"""The content of files and objects is the experiment's: an edit of the same name is another one."""

import linecache
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import to_yaml
from agentrl.config.schema import Config, Model, Trainer
from agentrl.core.errors import UserError
from agentrl.rollout.user_objects import UserObjects
from agentrl.training.checkpoint.changes import Resumption, check_changes, check_steps_left
from agentrl.training.checkpoint.contents import contents_of, read_record, record_text
from agentrl.trajectory.row import Row
from tests.training.saved import save_checkpoint

FILES = {
    "reward.py": "from helper import BONUS\nfrom pkg import parts\nimport numpy\n\ndef compute_score(**_): ...\n",
    "helper.py": "BONUS = 1\n",
    "pkg/__init__.py": "",
    "pkg/parts.py": "from .deep import x\n",
    "pkg/deep.py": "x = 1\n",
    "unused.py": "",
    "rows.jsonl": '{"prompt": "2 + 3?"}\n',
    "val.jsonl": '{"prompt": "2 + 4?"}\n',
    "tools/tools.yaml": "tools:\n  - class_name: lookup.Lookup\n    config: {type: native}\n",
    "tools/lookup.py": "import store\n",
    "tools/store.py": "",
    "template.jinja": "{{ messages }}",
    "loss.py": "def loss(): ...\n",
    "model/config.json": "{}",
    "model/model.safetensors": "weights",
}
EDITS = {
    "reward.py": "reward.custom_reward_function.path",
    "helper.py": "reward.custom_reward_function.path",
    "pkg/deep.py": "reward.custom_reward_function.path",
    "rows.jsonl": "data.train_files",
    "tools/tools.yaml": "rollout.multi_turn.tool_config_path",
    "tools/lookup.py": "rollout.multi_turn.tool_config_path",
    "tools/store.py": "rollout.multi_turn.tool_config_path",
    "template.jinja": "model.chat_template",
    "loss.py": "actor.policy_loss.loss_mode",
    "model/model.safetensors": "model.path",
}


def settings(folder: Path, run: Path) -> Config:
    config = Config(trainer=Trainer(default_local_dir=str(run), total_training_steps=4), model=Model())
    config.model.path, config.model.chat_template = str(folder / "model"), str(folder / "template.jinja")
    config.data.train_files, config.data.val_files = [str(folder / "rows.jsonl")], str(folder / "val.jsonl")
    config.reward.custom_reward_function.path = str(folder / "reward.py")
    config.rollout.multi_turn.tool_config_path = str(folder / "tools/tools.yaml")
    config.actor.policy_loss.loss_mode = f"{folder / 'loss.py'}:loss"
    return config


def save(config: Config, objects: Any = None, *, step: int = 3) -> None:
    run = Path(config.trainer.default_local_dir)
    save_checkpoint(run / "checkpoints", step, {})
    (run / "config.yaml").write_text(to_yaml(config))
    (run / "record.json").write_text(record_text(contents_of(config, objects), 4))


def check(config: Config, objects: Any = None) -> Resumption:
    return check_changes(config, Path(config.trainer.default_local_dir) / "checkpoints", objects)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    for name, text in FILES.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)
    made = settings(tmp_path / "mine", tmp_path / "run")
    save(made)
    return made


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_file_is_another_experiment(config: Config, tmp_path: Path, name: str) -> None:
    file = tmp_path / "mine" / name
    file.write_text(file.read_text() + " ")
    said = f"{'model' if 'model/' in name else file.name} was edited ({EDITS[name]})"
    with pytest.raises(UserError, match="has another experiment") as caught:
        check(config)
    assert f"global_step_3: {said}. For a new run" in str(caught.value)
    named: Any = {"resume_mode": "resume_path", "resume_from_path": str(tmp_path / "run/checkpoints/global_step_3")}
    assert said in check(replace(config, trainer=replace(config.trainer, **named))).changes


def test_what_is_no_edit(config: Config, tmp_path: Path) -> None:
    for file in (tmp_path / "mine").rglob("*.*"):
        os.utime(file, (1, 1))
    (tmp_path / "mine/unused.py").write_text("x = 2\n")
    (tmp_path / "mine/model/training.log").write_text("x")
    assert check(config) == Resumption()
    (tmp_path / "mine").rename(tmp_path / "moved")
    assert check(settings(tmp_path / "moved", tmp_path / "run")) == Resumption()


def test_validation_rows_are_listed_alone(config: Config, tmp_path: Path) -> None:
    (tmp_path / "mine/val.jsonl").write_text("{}")
    assert check(config).changes.endswith("global_step_3: val.jsonl was edited (data.val_files)")


def test_a_finished_run_is_continued_under_its_settings_alone(config: Config) -> None:
    save(config, step=4)
    assert check(config) == Resumption(finished=4)
    state = Path(config.trainer.default_local_dir) / "checkpoints/global_step_4/state.pt"
    whole = state.read_bytes()
    state.write_bytes(whole[:-1])
    assert check(config) == Resumption()  # damaged: its steps are taken again
    state.write_bytes(whole)
    config.actor.optim.lr = 0.5
    with pytest.raises(
        UserError, match=r"run has finished, after 4 steps under other settings: actor\.optim\.lr: 1e-06"
    ):
        check(config)
    config.trainer.total_training_steps = 5
    assert "actor.optim.lr" in check(config).changes
    assert not check(config).finished
    checkpoint = Path(config.trainer.default_local_dir) / "checkpoints/global_step_4"
    check_steps_left(config, None, 5, checkpoint, 4)
    with pytest.raises(UserError, match="has finished"):
        check_steps_left(config, None, 4, checkpoint, 4)


BONUS = 1


def helper() -> int:
    return BONUS


def score(**_: Any) -> int:
    return helper()


class Tool:
    def execute(self) -> int:
        return helper()


@pytest.mark.parametrize(
    "given",
    [score, partial(score, x=1), Tool, Tool(), Tool().execute],
    ids=["function", "partial", "class", "object", "method"],
)
def test_objects_of_a_module_are_its_files(given: Any, config: Config) -> None:
    names = [name for name, _ in contents_of(config, UserObjects(reward=given))["reward"]]
    assert names[0] == "test_contents.py"


def test_objects_of_a_notebook_are_their_source(config: Config, tmp_path: Path) -> None:
    def cell(bonus: str, body: str) -> Any:
        source = f"BONUS = {bonus}\ndef helper():\n    return {body}\ndef score(**_):\n    return helper() + BONUS\n"
        linecache.cache["<cell>"] = (len(source), None, source.splitlines(True), "<cell>")
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(source, "<cell>", "exec"), names)
        return UserObjects(reward=names["score"])

    save(config, cell("1", "1"))
    assert check(config, cell("1", "1")) == Resumption()
    with pytest.raises(UserError, match=r"helper was edited \(reward\)"):
        check(config, cell("1", "2"))
    with pytest.raises(UserError, match=r"BONUS was edited \(reward\)"):
        check(config, cell("2", "1"))


def test_rows_given_as_objects_count_to_the_last(config: Config) -> None:
    rows = [Row(str(i), [{"role": "user", "content": "?"}]) for i in range(200)]
    save(config, UserObjects(rows=rows))
    other = [*rows[:-1], replace(rows[-1], extra_info={"hint": 1})]
    with pytest.raises(UserError, match=r"rows was edited \(rows\)"):
        check(config, UserObjects(rows=other))


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"contents": 3}')
    with pytest.raises(UserError, match=r"record\.json is no record"):
        read_record(tmp_path / "record.json")
