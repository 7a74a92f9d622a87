r"""`agentrl train`: train a model with reinforcement learning, with tools, over several turns.

Examples:
    # multi-turn GRPO with tools
    agentrl train rollout.multi_turn.enable=true model.path=models/smollm2 \
          data.train_files=data/arithmetic/train.parquet rollout.multi_turn.tool_config_path=tools/calculator.yaml
    # use another algorithm and other values
    agentrl train algorithm=rloo rollout.n=16 actor.optim.lr=1e-5 ...
    # run your own experiment: my/exp.yaml
    agentrl train --config-dir my --config-name exp trainer.seed=1
    # run all four combinations
    agentrl train -m actor.optim.lr=1e-6,1e-5 rollout.n=4,8 ...
    # print the resolved configuration
    agentrl train --cfg job algorithm=dr_grpo
    # show keys about turns: type, default, meaning
    agentrl train --help-keys multi_turn
"""

import argparse
from typing import TYPE_CHECKING

from agentrl.cli.common import load_config, print_notes, terminal, use_idle_cores
from agentrl.cli.sweep import configure as configure
from agentrl.cli.sweep import sweep

if TYPE_CHECKING:
    from agentrl.config.schema import Config
    from agentrl.tracking.start_times import StartTimes


def run(args: argparse.Namespace) -> int:
    """Train."""
    if args.multirun:
        from agentrl.config.schema import Config
        from agentrl.rewards.checks import RUN

        return sweep(args, "train", "default_local_dir", Config, RUN)
    config = load_config(args)
    use_idle_cores(config.trainer, config.rollout)
    from agentrl.doctor.preflight import preflight_training

    print_notes(preflight_training(config))
    from agentrl.tracking.start_times import StartTimes, process_age
    from agentrl.training.checkpoint.run_start import supervise

    first = iter([StartTimes(process_age())])  # the start of a restart begins with it
    supervise(lambda config: train(config, next(first, None)), config, "trainer.default_local_dir", finished)
    return 0


def train(config: "Config", times: "StartTimes | None" = None) -> None:
    """Launch the servers, then import the rest of the program, which takes seconds, and train. `times`: of the start,
    which began before."""
    from agentrl.runtime.starting import starting

    with starting(config, times) as start:
        from agentrl.train import train

        train(config, start=start)


def finished(config: "Config", steps: int) -> None:
    """Say that all steps of the run are taken, and where its results are."""
    from agentrl.tracking.resume_notes import resuming_from
    from agentrl.tracking.summary import closing

    console = terminal()
    for piece in (resuming_from(steps, steps), *closing(config.trainer, None)):
        console.print(piece)
