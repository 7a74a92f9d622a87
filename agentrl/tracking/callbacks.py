"""Callbacks: the user's code at the start, after each step, validation and checkpoint, and at the end of a run.

Invariants: callbacks run in the process that takes the steps, in their order; a checkpoint that one gets is complete;
the first error of one ends the run after a checkpoint, and until then only `end` is called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from agentrl.core.errors import UserError, located
from agentrl.core.points import CALLBACKS, HOOKS, has_hooks
from agentrl.trajectory.trajectory import Trajectory

KEY = "trainer.callbacks"


@dataclass(frozen=True)
class Step:
    """One step of a run, done."""

    number: int
    """From 1; a run that resumes continues with the number after its checkpoint's. 0: before the first step."""
    metrics: dict[str, float]
    """By name, as they were logged."""
    trajectories: list[Trajectory] = field(default_factory=list)
    """All that were sampled, group by group; empty in supervised training."""

    def __repr__(self) -> str:
        return f"Step({self.number}, {len(self.metrics)} metrics, {len(self.trajectories)} trajectories)"


@dataclass(frozen=True)
class RunStart:
    """The run as a callback gets to know it."""

    folder: Path
    """With config.yaml, metrics and checkpoints."""
    config: Any
    """All settings: a `Config`, or an `SftConfig`."""
    step: int
    """The step that the run resumes from; 0: it is new."""
    total_steps: int


class Callback:
    """The hooks of a callback, each of which may be left out; a class with some of them need not derive from this one.
    An error in a hook stops the run after a checkpoint."""

    def start(self, run: RunStart) -> None:
        """The run begins, or resumes."""

    def step(self, step: Step) -> bool | None:
        """A training step is done and logged. True ends the run with this step."""

    def validation(self, step: Step) -> None:
        """A validation is done: its metrics (`val/`), and its trajectories."""

    def checkpoint(self, step: int, folder: Path) -> None:
        """The checkpoint of `step` is complete in `folder`."""

    def end(self, step: int, error: BaseException | None) -> None:
        """The run ends after `step`; `error`: what ends it early."""


class Callbacks:
    """The callbacks of `trainer.callbacks`: a context manager around the steps."""

    def __init__(self, names: Sequence[str], run: RunStart) -> None:
        """Raises UserError for a callback that is not there, or cannot be made."""
        self.run = run
        self.last = run.step
        """The last step that was taken."""
        self.failure: UserError | None = None
        """The first error of a callback."""
        self.finished = False
        """Whether a callback ends the run."""
        self._all = [(name, _hooks(name)) for name in names]
        self.waits_for_checkpoints = any("checkpoint" in hooks for _, hooks in self._all)
        """Whether one reads checkpoints: they are then complete before the next step."""

    def __enter__(self) -> Self:
        self._call("start", self.run)
        self.check()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        before, self.failure = self.failure, None
        self._call("end", self.last, error)
        if before is None and error is None:
            self.check()

    def check(self) -> None:
        """Raises the error of a callback, if there is one."""
        if self.failure is not None:
            raise self.failure

    def step(self, step: Step) -> None:
        """See Callback."""
        self.last = step.number
        self.finished = any(answer is True for answer in self._call("step", step))

    def validation(self, step: Step) -> None:
        """See Callback; nothing where nothing was validated."""
        if step.metrics:
            self._call("validation", step)

    def checkpoint(self, step: int, folder: Path) -> None:
        """See Callback."""
        self._call("checkpoint", step, folder)

    def _call(self, hook: str, *args: Any) -> list[Any]:
        answers = []
        for name, hooks in self._all:
            if self.failure is not None or hook not in hooks:
                continue
            try:
                answers.append(hooks[hook](*args))
            except (Exception, SystemExit) as error:
                self.failure = self._reported(name, hook, error)
        return answers

    def _reported(self, name: str, hook: str, error: BaseException) -> UserError:
        after = f" after step {self.last}" if self.last else ""
        failure = UserError(f"{KEY}: {name}: {hook} failed{after}: {located(error)}")
        failure.__cause__ = error
        return failure


def _hooks(name: str) -> dict[str, Callable[..., Any]]:
    """The hooks of a callback, by name; a function is the hook `step`. Raises UserError."""
    value = CALLBACKS.get(name, KEY)
    if not has_hooks(value):
        return {"step": value}
    made = CALLBACKS.make(name, KEY)
    own = (hook for hook in HOOKS if getattr(type(made), hook, None) not in (None, getattr(Callback, hook)))
    return {hook: getattr(made, hook) for hook in own}
