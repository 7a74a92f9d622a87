"""The supervised loop: conversations in, a fine-tuned model out.

Invariants: only the assistant's tokens are trained on, its end of turn included; a step's loss is the mean over its
assistant tokens, for any micro-batches and any number of ranks; a resumed run takes the steps that an unbroken one
would have taken.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentrl.config import to_yaml
from agentrl.config.schema.sft import SftConfig
from agentrl.core.stopping import STOPPING, StopRequest
from agentrl.runtime.opening import open_sft
from agentrl.tracking.callbacks import Callbacks, RunStart, Step
from agentrl.tracking.loggers import Loggers, open_loggers
from agentrl.tracking.resume_notes import resuming_from
from agentrl.tracking.services.service import RunInfo
from agentrl.tracking.status import RunStatus
from agentrl.training.checkpoint.changes import check_steps_left
from agentrl.training.checkpoint.contents import contents_of, record_text
from agentrl.training.checkpoint.run_state import Checkpoints
from agentrl.training.sft.contract import SftResult
from agentrl.training.sft.run import Run, replaced, saving_of

Metrics = dict[str, float]
OnStep = Callable[[int, int, Metrics], object]
"""Called after each step with (step, all steps, metrics)."""

log = logging.getLogger(__name__)


def sft(config: SftConfig, on_step: OnStep) -> SftResult:
    """Train, and write the model to `trainer.output_dir`. Raises UserError."""
    with closing(open_sft(config)) as run:
        contents, (total, epoch) = contents_of(config), run.length()
        checkpoints = Checkpoints(saving_of(config.trainer, epoch), run, {}, partial(replaced, config))
        start = checkpoints.resume(partial(check_steps_left, config, contents, total))
        if start:
            log.warning("%s", resuming_from(start, total))
        catching = StopRequest().catching(lambda: log.warning(STOPPING))
        folder = Path(config.trainer.output_dir)
        started = RunStart(folder, config, start, total)
        opened = _loggers(config, start, record_text(contents, total))
        with closing(opened) as loggers, Callbacks(config.trainer.callbacks, started) as callbacks:
            with catching as stop, RunStatus(folder, total), checkpoints.resumable():
                SftLoop(run, checkpoints, loggers, callbacks, on_step, stop).take_steps(total)
            return run.finish()


@dataclass
class SftLoop:
    """The steps of a run."""

    run: Run
    checkpoints: Checkpoints
    loggers: Loggers
    callbacks: Callbacks
    on_step: OnStep
    stop: StopRequest

    def take_steps(self, total: int) -> None:
        """Take the steps that are left. Raises Interrupted where a stop is requested."""
        checkpoints, callbacks = self.checkpoints, self.callbacks
        for step in range(checkpoints.taken + 1, total + 1):
            metrics = self.run.next_step()
            checkpoints.taken = step
            self._record(step, total, metrics)
            stopping = self.stop.requested  # read once: the next step saves for a later request
            last = step == total or callbacks.finished
            stops = stopping or callbacks.failure is not None
            if checkpoints.due(step) or stops or (last and self._saves_last()):
                checkpoints.save(step, last=True)
                callbacks.checkpoint(step, checkpoints.folder(step))
            callbacks.check()
            if last:
                return
            if stopping:
                self.stop.check()

    def _record(self, step: int, total: int, metrics: Metrics) -> None:
        # verl's names.
        named = {"val/loss" if name == "val_loss" else f"train/{name}": value for name, value in metrics.items()}
        self.loggers.log(step, named)
        self.on_step(step, total, metrics)
        if "val_loss" in metrics:
            self.callbacks.validation(Step(step, {"val/loss": metrics["val_loss"]}))
        self.callbacks.step(Step(step, named))

    def _saves_last(self) -> bool:
        """Whether the last step is saved: as asked for, or because the newest checkpoint must be the newest state."""
        return (self.checkpoints.trainer.save_freq or 0) > 0 or self.checkpoints.newest() > 0


def _loggers(config: SftConfig, resume_step: int, record: str) -> Loggers:
    """The loggers besides the terminal, which the command serves; the settings are written in any case."""
    trainer = config.trainer
    names = trainer.project_name, trainer.experiment_name
    run = RunInfo(*names, Path(trainer.output_dir), to_yaml(config), resume_step)
    return open_loggers([name for name in trainer.logger if name != "console"], run, record)
