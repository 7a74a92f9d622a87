"""Models of checkpoints, in Hugging Face format: where a model's folder is named, a run's may stand.

Invariant: a checkpoint is exported once, beside it, where all machines of its run see it; a checkpoint that is written
again is exported again.
"""

import logging
import zlib
from pathlib import Path
from typing import Any

from agentrl.core.paths import expanded
from agentrl.core.remote_files import made_once
from agentrl.training.checkpoint.lineage import FOLDER, step_of, visible

EXPORTED = "exported"
"""Folder of exported models, in the folder of the checkpoints."""
PARTS = ("actor", "huggingface")
"""Folders in a checkpoint that stand for it where they have no weights."""

log = logging.getLogger(__name__)


def use_checkpoints(config: Any) -> Any:
    """The settings, with `model.path` of a run or checkpoint replaced by its model's folder. Raises UserError."""
    if model := exported(config.model.path):
        log.warning("model.path=%s: its model is in %s", config.model.path, model)
        config.model.path = str(model)
    return config


def exported(path: str | Path | None) -> Path | None:
    """The folder of the model of a checkpoint, or of the newest one of a run; None for any other path."""
    place = expanded(path or "")
    if not path or not is_run(place):
        return None
    from agentrl.training.checkpoint.folders import HUGGINGFACE, MANIFEST, has_weights
    from agentrl.training.checkpoint.merge import merge
    from agentrl.training.checkpoint.resuming import newest

    checkpoint = newest(str(place))
    if has_weights(checkpoint) and not (checkpoint / HUGGINGFACE / "adapter_config.json").exists():
        return checkpoint / HUGGINGFACE
    manifest = checkpoint / MANIFEST
    stamp = zlib.crc32(manifest.read_bytes()) if manifest.is_file() else 0
    folder = checkpoint.parent / EXPORTED / f"{checkpoint.name}-{stamp:08x}"
    return made_once(folder, lambda draft: merge(checkpoint, draft, adapter=True), f"model.path: {checkpoint}")


def is_run(path: Path) -> bool:
    """Whether a path is a checkpoint, a part of one without weights, or a run's folder that is no model itself."""
    if any(path.glob("*.safetensors")) and (path / "config.json").exists():
        return False
    named = path.parent if path.name in PARTS else path
    return (step_of(named.name) is not None and named.is_dir()) or bool(visible(path / FOLDER) or visible(path))
