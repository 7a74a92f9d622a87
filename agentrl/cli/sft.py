r"""`agentrl sft`: fine-tune a model on demonstrations.

Examples:
    # train with LoRA; the adapter is merged into the written model
    agentrl sft model.path=models/smollm2 model.lora_rank=16 optim.lr=2e-4 \
          data.train_files=data/arithmetic/sft.jsonl trainer.output_dir=models/warm
    # then continue with reinforcement learning
    agentrl train model.path=models/warm ...
    # show keys about data: type, default, meaning
    agentrl sft --help-keys data.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentrl.cli.common import load_config, terminal, use_idle_cores
from agentrl.cli.sweep import configure as configure
from agentrl.cli.sweep import sweep
from agentrl.core.errors import plural
from agentrl.core.paths import shown

if TYPE_CHECKING:
    from agentrl.training.sft.contract import SftResult


OnStep = Callable[[int, int, dict[str, float]], None]


def run(args: argparse.Namespace) -> int:
    """Train and write the model."""
    from agentrl.config.schema.sft import SftConfig
    from agentrl.config.validate import SUPERVISED

    if args.multirun:
        return sweep(args, "sft", "output_dir", SftConfig, SUPERVISED)
    config = load_config(args, schema=SftConfig, default="sft", checks=SUPERVISED)
    use_idle_cores(config.trainer)
    from agentrl.doctor.preflight import preflight_sft

    preflight_sft(config)
    from agentrl.sft import sft
    from agentrl.training.checkpoint.run_start import supervise

    console = terminal(stderr=True)
    with progress(console, config.trainer.log_freq) as on_step:
        result = supervise(lambda config: sft(config, on_step), config, "trainer.output_dir")
    report(console, result)
    return 0


@contextmanager
def progress(console: Console, log_freq: int) -> Iterator[OnStep]:
    """A progress bar on a terminal; otherwise a line every `log_freq` steps, and for the first and last step."""
    if not console.is_terminal:
        yield lambda step, total, metrics: line(console, step, total, metrics, log_freq)
        return
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("loss {task.fields[loss]:.4f}")
    bar = Progress(TextColumn("sft"), *columns, console=console)
    task = bar.add_task("sft", total=None, loss=float("nan"))

    def on_step(step: int, total: int, metrics: dict[str, float]) -> None:
        bar.start()  # not before: a waiting line is shown until then
        bar.update(task, completed=step, total=total, loss=metrics["loss"])

    try:
        yield on_step
    finally:
        bar.stop()


def line(console: Console, step: int, total: int, metrics: dict[str, float], log_freq: int) -> None:
    """Print one step as a line."""
    if step in (1, total) or step % log_freq == 0 or "val_loss" in metrics:
        figures = f"loss {metrics['loss']:.4f}  grad norm {metrics['grad_norm']:.3g}  lr {metrics['lr']:.3g}"
        figures += f"  val loss {metrics['val_loss']:.4f}" if "val_loss" in metrics else ""
        console.print(f"sft step {step}/{total}  {figures}", markup=False)


def report(console: Console, result: "SftResult") -> None:
    """Print the result."""
    counts = (result.too_long, "longer than data.max_length"), (result.below, "below data.min_reward")
    reasons = ", ".join(f"{count} {why}" for count, why in counts if count)
    left_out = f" ({reasons} left out)" if reasons else ""
    held = "" if result.val_loss is None else f", validation loss {result.val_loss:.4f}"
    loss = "" if result.final_loss is None else f", final loss {result.final_loss:.4f}"
    console.print(
        f"{plural(result.conversations, 'conversation')}{left_out}, {plural(result.steps, 'step')}{loss}{held}; "
        f"the model is in {shown(result.path)}",
        markup=False,
    )
