"""verl's programs, for launch scripts: `python3 -m verl.trainer.main_ppo KEY=VALUE ...` under `agentrl verl`."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import UserError

PROGRAMS = {
    "verl.trainer.main_ppo": "train",
    "verl.trainer.main_ppo_sync": "train",
    "verl.trainer.fsdp_sft_trainer": "sft",
    "verl.trainer.sft_trainer": "sft",
    "verl.trainer.sft_trainer_ray": "sft",
    "verl.trainer.main_generation": "generate",
    "verl.trainer.main_generation_server": "generate",
    "verl.trainer.main_eval": "eval",
    "verl.model_merger.__main__": "merge",
}
"""The command that does what a program of verl's does."""
TORCHRUN = re.compile(r"TORCHELASTIC_.*|MASTER_(ADDR|PORT)|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)")
"""What torchrun tells its processes. Left in place, ours would wait for its store, which knows nothing of them."""


def run(program: str, args: Sequence[str]) -> int:
    """Run the command that stands for `program`; the exit code.

    torchrun starts a program many times: the first is enough, for agentrl starts as many processes by itself.
    """
    from agentrl.cli.main import main

    if int(os.environ.get("RANK", 0)):
        return 0
    started = {name: os.environ.pop(name) for name in filter(TORCHRUN.fullmatch, list(os.environ))}
    command = PROGRAMS[program]
    try:
        arguments = merge_arguments(args) if command == "merge" else [arg.removeprefix("++") for arg in args]
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if command == "sft":
        world, local = (int(started.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
        arguments = [*processes(world, local), *arguments]
    sys.stderr.write(f"agentrl verl: {program} runs as `agentrl {command}`\n")
    stands_for = [] if command == "merge" else [f"--verl-program={program}"]
    return main([command, *stands_for, *arguments])


def processes(world: int, local: int) -> list[str]:
    """Settings for as many processes as torchrun was told of, `local` on each machine."""
    return [] if world == 1 else [f"trainer.n_gpus_per_node={local}", f"trainer.nnodes={world // local}"]


def merge_arguments(args: Sequence[str]) -> list[str]:
    """`merge --backend fsdp --local_dir A/global_step_1/actor --target_dir B` as agentrl takes it. Raises UserError."""
    import argparse

    parser = argparse.ArgumentParser("verl.model_merger")
    parser.add_argument("operation", choices=["merge", "test"])
    for name in ("--backend", "--local_dir", "--target_dir", "--hf_model_path", "--hf_upload_path"):
        parser.add_argument(name)
    parser.add_argument("--is-value-model", action="store_true")
    known, _ = parser.parse_known_args(args)
    if known.is_value_model:
        raise UserError("verl.model_merger: a critic is not merged; remove --is-value-model and name the policy")
    if known.operation == "test" or known.backend == "megatron":
        raise UserError("verl.model_merger: only `merge --backend fsdp` is there; Megatron's checkpoints are not read")
    if known.hf_upload_path:
        raise UserError("verl.model_merger: nothing is uploaded; remove --hf_upload_path")
    if not known.local_dir or not known.target_dir:
        raise UserError("verl.model_merger: name --local_dir and --target_dir")
    return [str(checkpoint(Path(known.local_dir))), known.target_dir, "--overwrite"]


def checkpoint(place: Path) -> Path:
    """The checkpoint that verl would have at `place`: ours lie in a folder of their own beside it."""
    from agentrl.training.checkpoints import FOLDER

    step = place.parent if place.name == "actor" else place
    ours = step.parent / FOLDER / step.name
    return ours if ours.exists() and not step.exists() else step
