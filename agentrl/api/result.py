"""The result of a training run."""

import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from agentrl.config.schema import Config
from agentrl.core.errors import UserError, needing
from agentrl.core.paths import absolute
from agentrl.trajectory.trajectory import Trajectory


@dataclass
class Result:
    """The result of `agentrl.train`.

    Example: `result.metrics["rollout/reward_mean"]`, `result.model.generate(...)`, `result.save_model("models/mine")`.
    """

    config: Config
    """The settings of the run, complete."""
    run_dir: Path
    """The run's folder: config.yaml, metrics.jsonl, checkpoints, trajectories."""
    history: list[dict[str, float]]
    """Logged metrics of each training step of the run, with `step`; of earlier calls, those in metrics.jsonl."""
    trajectories: list[Trajectory]
    """All that the last step sampled, group by group; empty where no step was left to take."""
    checkpoint: Path | None
    """The newest checkpoint; None where none was saved."""
    initial_validation: dict[str, float] = field(default_factory=dict)
    """Metrics of the validation before the first step, or of a run with trainer.val_only; empty without one."""

    @property
    def metrics(self) -> dict[str, float]:
        """The last entry of `history`; where it is empty, `initial_validation`."""
        return self.history[-1] if self.history else self.initial_validation

    def to_pandas(self, what: str = "history") -> Any:
        """A DataFrame with a line for each entry of `history`, or with what="trajectories" for each of these.

        Raises UserError where pandas is not installed.
        """
        with needing("pandas", "pandas"):
            pandas = import_module("pandas")
        if what not in ("history", "trajectories"):
            raise UserError(f"to_pandas({what!r}): choose history or trajectories")
        return pandas.DataFrame(self.history if what == "history" else [_record(each) for each in self.trajectories])

    @cached_property
    def model(self) -> Any:
        """The trained model, of transformers' own class, on the CPU in eval mode; an adapter is folded in.

        It is loaded when it is first read. Raises UserError where there is no checkpoint.
        """
        from transformers import AutoConfig

        from agentrl.training.model.loading import language_head

        with tempfile.TemporaryDirectory(prefix="agentrl-model-") as folder:
            self.save_model(folder)
            config = AutoConfig.from_pretrained(folder)
            return language_head(config).from_pretrained(folder, config=config, dtype="auto").eval()

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer, with the chat template of the run. Raises UserError where there is no checkpoint."""
        from transformers import AutoTokenizer

        from agentrl.training.checkpoint.folders import HUGGINGFACE

        return AutoTokenizer.from_pretrained(self._saved() / HUGGINGFACE)

    def save_model(self, folder: str | Path, *, dtype: str | None = None, overwrite: bool = False) -> Path:
        """Write the trained model to `folder` in Hugging Face format, with its tokenizer; returns the folder.

        `dtype`: float32 or bfloat16; None: as it was trained. An adapter is folded in. Raises UserError where there is
        no checkpoint, or a model in the folder that is not to be overwritten.
        """
        from agentrl.training.checkpoint.merge import merge

        adapter = self.config.model.lora_rank > 0
        merge(self._saved(), out := absolute(folder), dtype=dtype, adapter=adapter, overwrite=overwrite)
        return out

    def _saved(self) -> Path:
        if self.checkpoint is None:
            raise UserError(f"{self.run_dir} holds no checkpoint: train at least one step")
        return self.checkpoint

    def __repr__(self) -> str:
        figures = {name: round(self.metrics[name], 4) for name in SHOWN if name in self.metrics}
        return f"Result(step={self.metrics.get('step', 0):g}, {figures}, run_dir={str(self.run_dir)!r})"


SHOWN = ("rollout/reward_mean", "val/reward_mean")


def _record(trajectory: Trajectory) -> dict[str, Any]:
    """A line of a table."""
    row, ledgers = trajectory.row, trajectory.ledgers
    first = next((float(value) for values in trajectory.advantages for value in values if value), None)
    return {
        "key": trajectory.key,
        "uid": row.uid,
        "data_source": row.data_source,
        "reward": trajectory.reward,
        "advantage": first if first is not None or not trajectory.advantages else 0.0,
        "outcome": str(trajectory.outcome),
        "finish": trajectory.finish,
        "turns": trajectory.turns,
        "tool_calls": len(trajectory.tool_calls),
        "tokens": sum(map(len, ledgers)),
        "model_tokens": sum(ledger.model_tokens for ledger in ledgers),
        "answer": trajectory.messages[-1].get("content") if trajectory.messages else None,
    }
