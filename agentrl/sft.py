"""The supervised loop: conversations in, a fine-tuned model out.

Invariants: only the assistant's tokens are trained on, its end of turn included; a step's loss is the mean over its
assistant tokens, for any micro-batches and any number of ranks; a resumed run takes the steps that an unbroken one
would have taken.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from agentrl.config import to_yaml
from agentrl.config.schema.sft import EACH_EPOCH, SftConfig
from agentrl.core.stopping import STOPPING, Interrupted, StopRequest
from agentrl.runtime.opening import open_sft
from agentrl.tracking.callbacks import Callbacks, RunStart, Step
from agentrl.tracking.loggers import Loggers, open_loggers
from agentrl.tracking.resume_notes import how_to_resume, resuming_from
from agentrl.tracking.services.service import RunInfo
from agentrl.tracking.status import RunStatus
from agentrl.training.checkpoint.contents import contents_of, record_text
from agentrl.training.checkpoint.lineage import visible
from agentrl.training.checkpoint.save_schedule import SaveSchedule
from agentrl.training.sft.contract import SftResult, SftRun
from agentrl.training.sft.run import checkpoint_folder

Metrics = dict[str, float]
OnStep = Callable[[int, int, Metrics], None]
"""Called after each step with (step, all steps, metrics)."""

METRIC_NAMES = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/lr",
    "tokens": "train/tokens",
    "skipped_steps": "train/skipped_steps",
    "val_loss": "val/loss",
}
"""Names of a step's metrics in logs, which are verl's."""

log = logging.getLogger(__name__)


def sft(config: SftConfig, on_step: OnStep) -> SftResult:
    """Train, and write the model to `trainer.output_dir`. Raises UserError."""
    with closing(open_sft(config)) as run:
        contents = contents_of(config)
        start, total, epoch = run.resume()
        if start:
            log.warning("%s", resuming_from(start, total))
        catching = StopRequest().catching(lambda: log.warning(STOPPING))
        folder = Path(config.trainer.output_dir)
        started = RunStart(folder, config, start, total)
        opened = _loggers(config, start, record_text(contents, total))
        with closing(opened) as loggers, Callbacks(config.trainer.callbacks, started) as callbacks:
            with catching as stop, RunStatus(folder, total):
                SftLoop(config, run, loggers, callbacks, on_step, stop, epoch).take_steps(start, total)
            return run.finish()


@dataclass
class SftLoop:
    """The steps of a run."""

    config: SftConfig
    run: SftRun
    loggers: Loggers
    callbacks: Callbacks
    on_step: OnStep
    stop: StopRequest
    epoch: int
    """Steps of one pass over the rows."""
    taken: int = 0
    """The last step that the weights have learned from."""

    def take_steps(self, start: int, total: int) -> None:
        """Take the steps after `start`. Raises Interrupted where a stop is requested."""
        self.taken, trainer = start, self.config.trainer
        try:
            self._take_steps(total)
        except KeyboardInterrupt:
            saved = max(visible(checkpoint_folder(trainer)), default=0)
            raise Interrupted(how_to_resume(start, self.taken, saved, trainer.resume_mode)) from None

    def _take_steps(self, total: int) -> None:
        every = self.config.trainer.save_freq
        save_freq = self.epoch if every == EACH_EPOCH else None if every is None else int(every)
        schedule = SaveSchedule(save_freq)
        for step in range(self.taken + 1, total + 1):
            metrics = self.run.next_step()
            self.taken = step
            self._record(step, total, metrics)
            stopping = self.stop.requested  # read once: the next step saves for a later request
            last = step == total or self.callbacks.finished
            stops = stopping or self.callbacks.failure is not None
            if schedule.due(step) or stops or (last and self._saves_last(save_freq)):
                with schedule.saving():
                    self.run.save()
                self.callbacks.checkpoint(step, visible(checkpoint_folder(self.config.trainer))[step])
            self.callbacks.check()
            if last:
                return
            if stopping:
                self.stop.check()

    def _record(self, step: int, total: int, metrics: Metrics) -> None:
        named = {METRIC_NAMES[name]: value for name, value in metrics.items()}
        self.loggers.log(step, named)
        self.on_step(step, total, metrics)
        if "val_loss" in metrics:
            self.callbacks.validation(Step(step, {"val/loss": metrics["val_loss"]}))
        self.callbacks.step(Step(step, named))

    def _saves_last(self, save_freq: int | None) -> bool:
        """Whether the last step is saved: as asked for, or because the newest checkpoint must be the newest state."""
        return (save_freq or 0) > 0 or bool(visible(checkpoint_folder(self.config.trainer)))


def _loggers(config: SftConfig, resume_step: int, record: str) -> Loggers:
    """The loggers besides the terminal, which the command serves; the settings are written in any case."""
    trainer = config.trainer
    names = trainer.project_name, trainer.experiment_name
    run = RunInfo(*names, Path(trainer.output_dir), to_yaml(config), resume_step)
    return open_loggers([name for name in trainer.logger if name != "console"], run, record)
