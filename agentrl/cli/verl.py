"""`agentrl verl`: run a script that was written for verl as it is.

agentrl verl bash run_qwen2.5-3b_gsm8k_multiturn.sh trainer.logger=console
agentrl verl python examples/data_preprocess/gsm8k_multiturn_w_tool.py --local_dir data/gsm8k

In the command, and in all that it starts, `import verl` and `python3 -m verl.trainer.main_ppo` mean agentrl. What the
script leaves unset has the default of the verl that it was written for: `--as 0.7` says which.
"""

import argparse
import os
import sys
from pathlib import Path

HELP = "run a launch or data script that was written for verl, as it is"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command."""
    parser.add_argument(
        "--as",
        dest="version",
        metavar="VERSION",
        help="the verl that the script was written for, whose defaults count: 0.4 to 0.9 (default: that of the "
        "checkout around the script or the working directory, or else what its keys tell)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Become the command. Raises UserError."""
    from agentrl import verl
    from agentrl.core.errors import UserError

    command = [part for i, part in enumerate(args.command) if i or part != "--"]
    if not command:
        raise UserError("agentrl verl: name what to run, as in `agentrl verl bash run.sh`")
    stand_in = str(Path(verl.__file__).parent / "launch")
    # Our interpreter first: scripts say python3 and mean the one with the trainer in it.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    package = str(Path(verl.__file__).parents[2])
    paths = [stand_in, package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    _set_version(args.version, command)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UserError(f"agentrl verl: {command[0]} cannot be run: {error.strerror}") from None


def _set_version(asked: str | None, command: list[str]) -> None:
    """Say to all that the command starts which verl it was written for, where that is known. Raises UserError."""
    from agentrl.config.verl_version import VARIABLE, from_checkout, read_version

    if asked is not None:
        version = read_version(asked, "--as")
    elif VARIABLE in os.environ:
        return
    else:
        found = from_checkout(path for word in command[1:] if (path := Path(word)).is_file())
        if found is None:
            return
        version = found
    os.environ[VARIABLE] = f"{version.number} {version.reason}"
