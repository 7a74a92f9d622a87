"""Checkpoints on disk: whole or not there.

A checkpoint is a folder `global_step_<n>` with `state.pt` (what a restart needs), `huggingface/` (model or adapter, and
tokenizer) and `manifest.json` (its files with size and checksum). Invariants:
- a folder of that name is complete: it is written beside, forced to disk, and then renamed;
- what is being written, replaced or deleted has a name that begins with a dot, and `latest` does not see it;
- `state.pt` holds tensors and plain data only: loading it runs no code.

One process writes to a folder at a time.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from agentrl.errors import UserError
from agentrl.resources import find

STATE = "state.pt"
MANIFEST = "manifest.json"
HUGGINGFACE = "huggingface"
FORMAT = "agentrl-checkpoint-1"

_NAME = re.compile(r"global_step_(\d+)")
_NEW, _OLD = ".new-", ".old-"
_BLOCK = 2**22


def save(folder: Path, step: int, state: dict[str, Any], write_model: Callable[[Path], None] | None = None) -> Path:
    """Write the checkpoint of `step` into `folder` and return its path; one of the same step is replaced.

    `write_model` fills a given folder with the model in Hugging Face format.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _tidy(folder)
    final = folder / f"global_step_{step}"
    draft = folder / f"{_NEW}{final.name}"
    draft.mkdir()
    torch.save(state, draft / STATE)
    if write_model is not None:
        write_model(draft / HUGGINGFACE)
    files = {str(file.relative_to(draft)): _stamp(file) for file in sorted(draft.rglob("*")) if file.is_file()}
    manifest = {"format": FORMAT, "step": step, "files": files}
    (draft / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in [draft, *draft.rglob("*")]:
        _force_to_disk(path)
    if final.exists():
        final.rename(folder / f"{_OLD}{final.name}")
    draft.rename(final)
    _force_to_disk(folder)
    _tidy(folder)
    return final


def load(path: Path) -> tuple[int, dict[str, Any]]:
    """(step, state) of a checkpoint, tensors on the CPU. Raises UserError when it is damaged or none of agentrl's."""
    step, files = _read_manifest(path)
    file = path / STATE
    if not file.is_file() or files.get(STATE) != _stamp(file):
        raise UserError(f"{file} is damaged; resume from an older checkpoint with trainer.resume_mode=resume_path")
    return step, torch.load(file, map_location="cpu", weights_only=True)


def latest(folder: Path) -> Path | None:
    """The checkpoint of the highest step; None where there is none."""
    if not folder.is_dir():
        return None
    _tidy(folder)
    steps = _steps(folder)
    return steps[max(steps)] if steps else None


def source(folder: Path, resume_mode: str, resume_from_path: str | None) -> Path | None:
    """The checkpoint that a run goes on from: the latest in `folder`, the one named, or none. Raises UserError."""
    if resume_mode == "auto":
        return latest(folder)
    if resume_mode == "disable":
        return None
    if resume_from_path is None:
        raise UserError("trainer.resume_from_path is not set: name a checkpoint, or use trainer.resume_mode=auto")
    return find(resume_from_path, what="trainer.resume_from_path")


def prune(folder: Path, keep: int | None) -> None:
    """Delete all but the `keep` newest checkpoints (None: keep all; at least one stays)."""
    if keep is None:
        return
    steps = _steps(folder)
    for step in sorted(steps)[: -max(keep, 1)]:
        # Renamed first: a checkpoint that is half deleted must not look like one.
        steps[step].rename(folder / f"{_NEW}{steps[step].name}")
    _tidy(folder)


def _steps(folder: Path) -> dict[int, Path]:
    matches = ((_NAME.fullmatch(entry.name), entry) for entry in folder.iterdir() if entry.is_dir())
    return {int(match[1]): entry for match, entry in matches if match}


def _tidy(folder: Path) -> None:
    """Clear away what an interrupted process left, and bring back a checkpoint whose replacement never came."""
    for old in folder.glob(f"{_OLD}*"):
        final = folder / old.name.removeprefix(_OLD)
        if final.exists():
            shutil.rmtree(old)
        else:
            old.rename(final)
    for draft in folder.glob(f"{_NEW}*"):
        shutil.rmtree(draft)


def _read_manifest(path: Path) -> tuple[int, dict[str, list[int]]]:
    file = path / MANIFEST
    if not file.is_file():
        raise UserError(f"{path} is no checkpoint of agentrl; name a folder global_step_<n> that holds {MANIFEST}")
    try:
        manifest = json.loads(file.read_text())
        known = manifest["format"] == FORMAT
        content = int(manifest["step"]), dict(manifest["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged; resume from an older checkpoint") from error
    if not known:
        raise UserError(f"{path} has format {manifest['format']}, not {FORMAT}: another version of agentrl wrote it")
    return content


def _stamp(file: Path) -> list[int]:
    """[size, CRC-32]"""
    checksum = 0
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return [file.stat().st_size, checksum]


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
