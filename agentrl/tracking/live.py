"""The terminal view of a run.

Invariants:
- on a terminal one panel is redrawn a few times a second by a thread of rich's; everything else that is
  printed or logged scrolls by above it and never tears it;
- anywhere else (pipe, file, dumb terminal, view off) a step is one line and a validation is one line;
- a call costs microseconds: it stores values, and the drawing thread does the rest.
"""

import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from agentrl.tracking.fields import SUCCESS
from agentrl.tracking.lines import step_line, validation_line
from agentrl.tracking.panel import panel
from agentrl.tracking.state import State
from agentrl.tracking.status import ended

REFRESH_PER_SECOND = 4
SUCCESS_METRICS = {"rollout/success", "val/success"}


class LiveView:
    """`with LiveView(120, "demo") as view:`, then `phase`, `progress`, `step` and `note` as things happen."""

    def __init__(
        self,
        total_steps: int | None = None,
        title: str = "run",
        enabled: bool = True,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        absent: Collection[str] = (),
    ) -> None:
        """`enabled` false: lines even on a terminal. `total_steps` None: of unknown length. `absent`: metrics that this
        kind of run does not have; they are shown once they exceed 1."""
        self.console = console or Console()
        self._clock = clock
        self._state = State(total_steps, title, started=clock(), absent=absent)
        self._explained = False
        self._live: Live | None = None
        if enabled and _can_redraw(self.console):
            self._live = Live(
                get_renderable=lambda: panel(self._state, self._clock(), self.console.width, self.console.height),
                console=self.console,
                refresh_per_second=REFRESH_PER_SECOND,
                redirect_stderr=sys.stderr.isatty(),  # `2> errors.log` keeps its meaning
            )
        self._streams = ExitStack()

    def __enter__(self) -> Self:
        if self._live is not None:
            outputs = (sys.stdout, sys.stderr)
            self._live.start()
            self._redirect(outputs)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._state.enter(None, self._clock())
        self._state.ended = ended(error)
        if self._live is not None:
            self._streams.close()
            self._live.stop()

    def phase(self, name: str) -> None:
        """`name` runs from now on; progress starts over."""
        self._state.enter(name, self._clock())

    def progress(self, done: int, total: int) -> None:
        """`done` of `total` trajectories of this phase are finished."""
        self._state.done, self._state.expected = done, total

    def watch(self, containers: Mapping[str, int]) -> None:
        """Show how many containers are in which phase, as long as the run counts them."""
        self._state.containers = containers

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is over. `val/` names are shown as a validation, all others as the step's own."""
        now = self._clock()
        training, validation = self._state.record(step, metrics, now)
        eta = self._state.eta(now)
        if self._live is not None:
            return
        if not self._explained and SUCCESS_METRICS & metrics.keys():
            self._explained = True
            self.note(f"success: {SUCCESS}")
        if training:
            self.note(step_line(step, self._state.total_steps, training, eta))
        if validation:
            self.note(validation_line(step, validation))

    def note(self, text: str) -> None:
        """A sentence for the person watching, which stays on the screen."""
        self.show(Text(text))

    def show(self, renderable: RenderableType) -> None:
        """Print anything rich can draw: a conversation, a table."""
        self.console.print(renderable, soft_wrap=isinstance(renderable, Text))

    def _redirect(self, outputs: tuple[object, ...]) -> None:
        """Let log handlers that hold the real stdout or stderr write above the panel as `print` already does."""
        for handler in _stream_handlers():
            if handler.stream in outputs:
                target = sys.stdout if handler.stream is outputs[0] else sys.stderr
                self._streams.callback(handler.setStream, handler.setStream(target))


def _can_redraw(console: Console) -> bool:
    # In a notebook rich redraws with widgets only, which need not be installed.
    redraws = console.is_terminal and not console.is_dumb_terminal and not console.is_jupyter
    return redraws and console.encoding.startswith("utf")


def _stream_handlers() -> list[logging.StreamHandler]:
    """Stream handlers of all loggers: libraries such as transformers keep their own."""
    loggers = [logging.root, *logging.Logger.manager.loggerDict.values()]
    handlers = [h for logger in loggers if isinstance(logger, logging.Logger) for h in logger.handlers]
    return [h for h in handlers if isinstance(h, logging.StreamHandler)]
