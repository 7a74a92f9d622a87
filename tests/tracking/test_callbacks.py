"""Callbacks by themselves, and the one of docs/extending.md that uploads."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.core.errors import UserError
from agentrl.core.points import CALLBACKS
from agentrl.core.registry import GivenObject
from agentrl.tracking.callbacks import Callback, Callbacks, RunStart, Step

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def shown(name: str) -> dict[str, Any]:
    """What a Python block of the page defines."""
    block = re.search(rf"```python\n# {name}\n(.*?)```", PAGE.read_text(), re.S)
    assert block is not None
    names: dict[str, Any] = {}
    exec(block[1], names)
    return names


def made(*callbacks: Any, folder: Path = Path("runs/a")) -> Callbacks:
    named = [GivenObject(f"<python: {n}>", each) for n, each in enumerate(callbacks)]
    return Callbacks(named, RunStart(folder, SimpleNamespace(), 0, 4))


def test_the_upload_of_the_docs(tmp_path: Path) -> None:
    calls = []
    api = SimpleNamespace(
        create_repo=lambda repo, **more: calls.append(("create", repo, more)),
        upload_folder=lambda **more: calls.append(("upload", more)),
    )
    with made(shown("to_hub.py")["ToHub"]("me/model", api), folder=tmp_path) as callbacks:
        assert callbacks.waits_for_checkpoints
        callbacks.checkpoint(3, tmp_path / "global_step_3")
    folder = tmp_path / "global_step_3" / "huggingface"
    assert calls == [
        ("create", "me/model", {"private": True, "exist_ok": True}),
        ("upload", {"repo_id": "me/model", "folder_path": folder, "commit_message": "Step 3"}),
    ]


def test_the_arguments_of_the_upload_are_those_of_the_library() -> None:
    import inspect

    from huggingface_hub import HfApi

    inspect.signature(HfApi.create_repo).bind(None, "me/model", private=True, exist_ok=True)
    inspect.signature(HfApi.upload_folder).bind(None, repo_id="a", folder_path="b", commit_message="c")


def test_patience_of_the_docs() -> None:
    with made(shown("my_callback.py")["Patience"]()) as callbacks:
        for number in range(1, 12):
            assert not callbacks.finished
            callbacks.step(Step(number, {"rollout/reward_mean": 0.5}))
        assert callbacks.finished
        assert not callbacks.waits_for_checkpoints


def test_after_an_error_only_the_end_is_called() -> None:
    called = []

    class Fails:
        def step(self, step: Step) -> None:
            called.append("fails")
            raise SystemExit("no")

        def end(self, step: int, error: BaseException | None) -> None:
            called.append(f"end {step}")
            raise ValueError("again")

    def stop(callbacks: Callbacks) -> None:
        with callbacks:
            callbacks.step(Step(1, {}))
            callbacks.step(Step(2, {}))
            callbacks.check()

    line = r"<python: 0>: step failed after step 1: SystemExit: no \(.*test_callbacks.py:"
    with pytest.raises(UserError, match=line):
        stop(made(Fails(), lambda step: called.append("second")))
    assert called == ["fails", "end 2"]


def test_an_error_at_the_start_and_at_the_end_is_said() -> None:
    class Fails:
        def start(self, run: RunStart) -> None:
            raise ValueError("early")

    class FailsLate:
        def end(self, step: int, error: BaseException | None) -> None:
            raise ValueError("late")

    for kind, says in ((Fails, "start failed: ValueError: early"), (FailsLate, "end failed: ValueError: late")):
        with pytest.raises(UserError, match=says), made(kind):
            pass


def test_validations_without_rows_are_none() -> None:
    seen = []

    class Watch(Callback):
        def validation(self, step: Step) -> None:
            seen.append(step.number)

    with made(Watch) as callbacks:
        callbacks.validation(Step(0, {}))
        callbacks.validation(Step(2, {"val/reward_mean": 1.0}))
    assert seen == [2]


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (type("Other", (Callback,), {"on_step_end": lambda self: None}), "has none of its methods"),
        (SimpleNamespace(on_step_end=None), "has none of its methods"),
        (type("Few", (), {"checkpoint": lambda self, step: None}), r"cannot be called with \(self, step, folder\)"),
        (lambda: None, r"write def name\(step\)"),
    ],
)
def test_a_callback_that_is_none_is_one_line(callback: Any, says: str) -> None:
    with pytest.raises(UserError, match=f"trainer.callbacks=<python: mine>.*{says}"):
        CALLBACKS.get(GivenObject("<python: mine>", callback), "trainer.callbacks")
