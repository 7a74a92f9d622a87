"""Checkpoints on disk: complete or absent.

A checkpoint is a folder `global_step_<n>` with `state.pt` (plain data), `policy-<rank>.safetensors` and perhaps
`critic-<rank>.safetensors` (each rank's chunks of parameters and optimizer), `huggingface/` (configuration and
tokenizer; the model too where `save_contents` has hf_model) and `manifest.json` (files with size and checksum).
Invariants:
- a folder of that name is complete: it is written under another name, flushed to disk, then renamed by the first rank;
- a checkpoint that is being written, replaced or deleted has a name that begins with a dot; `latest` ignores it;
- the checkpoints of one folder are one lineage (see `lineage`), so the highest step is the newest;
- loading runs no code: tensors are in safetensors, the rest is plain data;
- any number of ranks can read a checkpoint that any number of ranks wrote.

One run writes to a folder at a time; all its ranks see that folder.
"""

import json
import os
import shutil
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from agentrl.core.errors import UserError
from agentrl.core.inside import is_inside
from agentrl.core.numbers import limit_of
from agentrl.core.outputs import UNREAD, write_atomic
from agentrl.training.checkpoint.lineage import DamagedCheckpoint, visible
from agentrl.training.checkpoint.tensor_files import SUFFIX, TensorFiles, join, split, to_cpu, write
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.parallel.shards import TensorChunk

STATE = "state.pt"
MANIFEST = "manifest.json"
HUGGINGFACE = "huggingface"
FORMAT = "agentrl-checkpoint-2"

_NEW, _OLD = ".new-", ".old-"
_BLOCK = 2**22

Finish = Callable[[], Path]


def begin(
    folder: Path,
    step: int,
    state: dict[str, Any],
    write_model: Callable[[Path], None] | None = None,
    *,
    ranks: Ranks = ALONE,
    automatic: bool = False,
) -> Finish:
    """Copy the state of the model now; the function returned writes the checkpoint of `step` into `folder`, in any
    thread, and returns its path. One of the same step is replaced.

    `state`: plain data and tensors of the first rank; TensorChunks of every rank. `write_model` writes the model in
    Hugging Face format to the folder that it gets. `automatic`: `prune` may delete this one as such. Collective: all
    ranks call it.
    """
    final = folder / f"global_step_{step}"
    draft = folder / f"{_NEW}{final.name}"
    plain, chunks = split(state)
    chunks = to_cpu(chunks)
    ranks.attempt(lambda: _begin_draft(draft) if ranks.first else None)
    if write_model is not None:
        write_model(draft / HUGGINGFACE)

    def finish() -> Path:
        stamps = ranks.merge(ranks.attempt(lambda: _written(draft, ranks.rank, chunks)), background=True)
        ranks.attempt(lambda: _complete(draft, final, step, plain, automatic, stamps) if ranks.first else None)
        return final

    return finish


def _begin_draft(draft: Path) -> None:
    draft.parent.mkdir(parents=True, exist_ok=True)
    tidy(draft.parent)
    draft.mkdir()


def load(path: Path, *, ranks: Ranks = ALONE) -> tuple[int, dict[str, Any]]:
    """(step, state) of a checkpoint, on the CPU, with a `SavedTensor` for each chunk. Collective.

    Each share of the ranks reads its part of the files for the checksums. Raises DamagedCheckpoint on every rank for a
    damaged one, UserError for a folder that is no checkpoint.
    """
    refusals = ranks.gather(_refusal(path, ranks.data_rank, ranks.data_world))
    refusal = next((found for found in refusals if found is not None), None)
    if refusal is not None:
        raise refusal
    step: int = _read_manifest(path)["step"]
    state = torch.load(path / STATE, map_location="cpu", weights_only=True)
    return step, join(state, TensorFiles(path))


def has_weights(path: Path) -> bool:
    """Whether a checkpoint has the model in Hugging Face format."""
    return any(file.name != UNREAD for file in (path / HUGGINGFACE).glob("*.safetensors"))


def prune(folder: Path, keep: int | None, *, automatic: bool = False) -> list[str]:
    """Delete all but the `keep` newest checkpoints (None, 0 or less: keep all), or only the `automatic` ones of them;
    returns the deleted names."""
    gone = [path for path in _older(folder, keep) if not automatic or _is_automatic(path)]
    for path in gone:
        # Renamed first: a half deleted checkpoint must not look complete.
        path.rename(folder / f"{_NEW}{path.name}")
    tidy(folder)
    return [path.name for path in gone]


def _older(folder: Path, keep: int | None) -> list[Path]:
    """All checkpoints but the `keep` newest."""
    steps, most = visible(folder), limit_of(keep)
    return [] if most is None else [steps[step] for step in sorted(steps)[:-most]]


def _is_automatic(path: Path) -> bool:
    with suppress(UserError):  # an unreadable one stays
        return bool(_read_manifest(path).get("automatic"))
    return False


def prune_part(folder: Path, part: str, keep: int | None) -> None:
    """Delete one part's files (`critic`) from all but the `keep` newest checkpoints (None, 0 or less: from none)."""
    for path in _older(folder, keep):
        gone = sorted(path.glob(f"{part}-*{SUFFIX}"))
        with suppress(DamagedCheckpoint):  # a damaged old checkpoint must not end the run
            manifest = _read_manifest(path)
            files = {n: stamp for n, stamp in manifest["files"].items() if path / n not in gone}
            _write_manifest(path, manifest | {"files": files})
        for file in gone:
            file.unlink()


def _written(draft: Path, rank: int, chunks: dict[str, TensorChunk]) -> dict[str, list[int]]:
    """Write a rank's files: the stamp of each, by name."""
    files = write(draft, rank, chunks)
    for file in files:
        _force_to_disk(file)
    return {file.name: _stamp(file) for file in files}


def _complete(
    draft: Path, final: Path, step: int, plain: dict[str, Any], automatic: bool, stamps: dict[str, list[int]]
) -> None:
    """Write the first rank's files, then rename the folder to its final name. `stamps`: of the ranks' files."""
    torch.save(plain, draft / STATE)
    names = [str(file.relative_to(draft)) for file in sorted(draft.rglob("*")) if file.is_file()]
    files = {name: stamps.get(name) or _stamp(draft / name) for name in names}
    _write_manifest(draft, {"format": FORMAT, "step": step, "automatic": automatic, "files": files})
    for path in [draft, *draft.rglob("*")]:
        _force_to_disk(path)
    if final.exists():
        final.rename(final.parent / f"{_OLD}{final.name}")
    draft.rename(final)
    _force_to_disk(final.parent)
    tidy(final.parent)


def tidy(folder: Path) -> None:
    """Remove leftovers of an interrupted process; restore a checkpoint whose replacement was not finished.

    Only the process that writes to the folder may call it.
    """
    for old in folder.glob(f"{_OLD}*"):
        final = folder / old.name.removeprefix(_OLD)
        if final.exists():
            _remove(old)
        else:
            old.rename(final)
    for draft in folder.glob(f"{_NEW}*"):
        _remove(draft)


def _remove(path: Path) -> None:
    """Remove a folder; of a link to one, the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    write_atomic(path / MANIFEST, [json.dumps(manifest, indent=1)])


def _read_manifest(path: Path) -> dict[str, Any]:
    """A manifest: format, step, files (name -> stamp), automatic."""
    file = path / MANIFEST
    if not file.is_file():
        raise DamagedCheckpoint(path, f"is no checkpoint of agentrl, or an incomplete one: it has no {MANIFEST}")
    try:
        manifest: dict[str, Any] = dict(json.loads(file.read_text()))
        known = manifest["format"] == FORMAT
        manifest |= {"step": int(manifest["step"]), "files": dict(manifest["files"])}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedCheckpoint(file) from error
    if not all(is_inside(path / name, path, links=False) for name in manifest["files"]):
        raise DamagedCheckpoint(file, "names files outside of it")
    if not known:
        raise UserError(f"{path} has format {manifest['format']}, not {FORMAT}: another version of agentrl wrote it")
    return manifest


def _refusal(path: Path, share: int, shares: int) -> UserError | None:
    """The reason why a checkpoint cannot be loaded, by one of the `shares` of its files; None: it can."""
    try:
        files = _read_manifest(path)["files"]
    except UserError as error:  # every rank must raise it
        return error
    stamps = {path / name: files[name] for name in list(files)[share::shares]}
    culprit = next((f for f, stamp in stamps.items() if not (f.is_file() and stamp == _stamp(f))), None)
    return None if culprit is None else DamagedCheckpoint(culprit)


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
