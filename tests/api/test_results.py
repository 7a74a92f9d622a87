"""What a person sees of results and errors: short texts, names, tables, one line."""

import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import agentrl
from agentrl.api.border import short_errors
from agentrl.core.errors import InfraError, UserError
from agentrl.tracking.run_tracker import RunTracker
from agentrl.trajectory.plain import from_plain, to_plain


def trajectory() -> agentrl.Trajectory:
    ledger = agentrl.Ledger()
    ledger.append_prompt([1, 2])
    ledger.append_model([3, 4, 5], [-0.5, -0.1, -0.2], turn=0, version=1)
    row = agentrl.Row("r1", [{"role": "user", "content": "x" * 5000}])
    answer = {"role": "assistant", "content": "5"}
    return agentrl.Trajectory(row, "3/r1/0", 0, messages=[answer], ledgers=[ledger], turns=1, reward=0.5)


def test_short_texts() -> None:
    found = trajectory()
    assert repr(found) == "Trajectory('3/r1/0', ok, stop, 1 turn, 3 model tokens, reward 0.5)"
    assert repr(found.ledgers[0]) == "Ledger(5 tokens, 3 of the model in 1 turn)"
    assert repr(agentrl.Ledger()) == "Ledger(0 tokens, 0 of the model in 0 turns)"
    assert repr(agentrl.Step(3, {"a": 1.0}, [found])) == "Step(3, 1 metrics, 1 trajectories)"


def test_sources_have_names() -> None:
    assert trajectory().ledgers[0].source_names == ["prompt", "prompt", "model", "model", "model"]


def test_a_step_s_trajectories_have_their_advantages(tmp_path: Path) -> None:
    from agentrl.config.schema import Config

    found, config = trajectory(), Config()
    config.trainer.default_local_dir, config.trainer.rollout_data_dir = str(tmp_path), None
    with RunTracker(config, 1, 0, lambda ids: "") as tracker:
        tracker.record_rollouts(1, [found])
        assert found.advantages == []
        tracker.record_advantages(lambda: {found.key: [np.array([0, 0, 0.5, 0.5, 0.5], dtype=np.float32)]})
    assert found.advantages[0].tolist() == [0, 0, 0.5, 0.5, 0.5]
    plain = to_plain(found, {})  # of a checkpoint
    assert from_plain(plain, found.row, []).advantages == []


def result(**values: Any) -> agentrl.Result:
    given = {"config": SimpleNamespace(), "run_dir": Path("runs/a"), "checkpoint": None}
    return agentrl.Result(**(given | {"history": [], "trajectories": []} | values))


def test_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    found = trajectory()
    found.advantages = [np.array([0, 0, 0.5, 0.5, 0.5])]
    made = result(history=[{"step": 1, "a": 2.0}, {"step": 2, "a": 3.0}], trajectories=[found])
    assert [line["a"] for line in made.to_pandas()] == [2.0, 3.0]
    (line,) = made.to_pandas("trajectories")
    assert line["advantage"] == 0.5
    assert (line["uid"], line["outcome"], line["model_tokens"], line["answer"]) == ("r1", "ok", 3, "5")
    with pytest.raises(UserError, match="choose history or trajectories"):
        made.to_pandas("tokens")


def test_tables_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="run pip install pandas"):
        result().to_pandas()


@short_errors
def fails(kind: type[Exception], depth: int = 30) -> None:
    try:
        if depth:
            fails.__wrapped__(kind, depth - 1)  # type: ignore[attr-defined]
        raise ValueError("the reason")
    except ValueError as error:
        raise kind("what is wrong: how to fix it") from error


def steps_fail() -> Any:
    with short_errors:
        yield 1
        fails(UserError)


def lines_of(call: Any) -> tuple[list[str], BaseException]:
    try:
        call()
    except Exception as error:
        return traceback.format_exception(error), error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("kind", [UserError, InfraError])
@pytest.mark.parametrize("generator", [False, True])
def test_an_error_has_a_short_traceback(kind: type[Exception], generator: bool) -> None:
    lines, error = lines_of(lambda: list(steps_fail()) if generator else fails(kind))
    assert sum(line.startswith("  File") for line in lines) <= 4
    assert lines[-1].endswith("what is wrong: how to fix it\n")
    assert "the reason" not in "".join(lines)
    assert isinstance(error.__context__, ValueError | UserError)
    assert error._render_traceback_() == [f"{type(error).__name__}: what is wrong: how to fix it"]  # type: ignore[attr-defined]


def test_other_errors_and_a_wish_show_all(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = lines_of(lambda: fails(RuntimeError, 3))
    assert "the reason" in "".join(lines)
    monkeypatch.setenv("AGENTRL_TRACEBACK", "1")
    lines, _ = lines_of(lambda: fails(UserError, 3))
    assert "the reason" in "".join(lines)


@pytest.mark.parametrize("name", agentrl.FUNCTIONS)
def test_every_function_of_the_api_has_short_errors(name: str) -> None:
    import agentrl.api

    assert getattr(agentrl.api, name).__wrapped__.__name__ == name


def test_settings_that_an_editor_completes() -> None:
    from agentrl.api.settings import settings as settled
    from agentrl.config.schema import Config

    made = agentrl.Settings()
    made.actor.optim.lr = 3e-5
    made.rollout.n = 3
    made.trainer.logger = ["file"]
    assert made.actor.optim.lr == 3e-5
    assert made.data.train_batch_size == Config().data.train_batch_size
    assert {"lr", "optimizer", "betas"} <= {*dir(made.actor.optim)}
    assert repr(made) == "Settings({'actor.optim.lr': 3e-05, 'rollout.n': 3, 'trainer.logger': ['file']})"
    config = settled(made, Config, preset="tiny", config_dir=None)
    assert (config.actor.optim.lr, config.rollout.n, config.data.train_batch_size) == (3e-5, 3, 16)
    whole = settled(agentrl.Settings(rollout={"n": 5}), Config, preset="tiny", config_dir=None)  # type: ignore[arg-type]
    assert whole.rollout.n == 5


def test_a_misspelt_key_of_settings_is_said_at_once() -> None:
    made: Any = agentrl.Settings()
    with pytest.raises(AttributeError, match=r"no key actor.optim.lrr: did you mean lr\?"):
        made.actor.optim.lrr = 1
    with pytest.raises(AttributeError, match="no key actr: did you mean actor"):
        made.actr.optim.lr = 1
    with pytest.raises(AttributeError, match="no attribute 'append'"):
        made.trainer.logger.append("wandb")
    sft: Any = agentrl.SftSettings()
    sft.optim.lr = 1.0
    assert not hasattr(sft, "rollout")


def test_a_model_is_saved_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("agentrl.training.checkpoint.merge.merge", lambda checkpoint, out, **_: written.append(out))
    config = agentrl.Config()
    result = agentrl.Result(config, tmp_path, [], [], tmp_path / "global_step_1")
    assert result.save_model("~/model") == tmp_path / "model"
    assert written == [tmp_path / "model"]
