"""`agentrl verl`: run a script that was written for verl as it is.

agentrl verl bash run_qwen2.5-3b_gsm8k_multiturn.sh trainer.logger=console
agentrl verl python examples/data_preprocess/gsm8k_multiturn_w_tool.py --local_dir data/gsm8k

In the command, and in all that it starts, `import verl` and `python3 -m verl.trainer.main_ppo` mean agentrl.
"""

import argparse
import os
import sys
from pathlib import Path

HELP = "run a launch or data script that was written for verl, as it is"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command."""
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Become the command. Raises UserError."""
    from agentrl import verl
    from agentrl.errors import UserError

    command = [part for i, part in enumerate(args.command) if i or part != "--"]
    if not command:
        raise UserError("agentrl verl: name what to run, as in `agentrl verl bash run.sh`")
    stand_in = str(Path(verl.__file__).parent / "launch")
    # Our interpreter first: scripts say python3 and mean the one with the trainer in it.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    package = str(Path(verl.__file__).parents[2])
    paths = [stand_in, package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UserError(f"agentrl verl: {command[0]} cannot be run: {error.strerror}") from None
