"""`agentrl verl`: run a script written for verl, unchanged.

agentrl verl bash run_qwen2.5-3b_gsm8k_multiturn.sh trainer.logger=console
agentrl verl python examples/data_preprocess/gsm8k_multiturn_w_tool.py --local_dir data/gsm8k

In the command and its child processes, `import verl` and `python3 -m verl.trainer.main_ppo` run agentrl. Unset keys
take the defaults of the verl version that the script was written for: `--as 0.7` names it.
"""

import argparse
import os
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """The command."""
    parser.add_argument(
        "--as",
        dest="version",
        metavar="VERSION",
        help="verl version of the script, for defaults: 0.4 to 0.9 (default: the version of the verl checkout around "
        "the script or the working directory, otherwise guessed from its keys)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="the command to run")


def run(args: argparse.Namespace) -> int:
    """Replace this process by the command. Raises UserError."""
    import agentrl
    from agentrl.core.errors import UserError

    command = [part for i, part in enumerate(args.command) if i or part != "--"]
    if not command:
        raise UserError("agentrl verl: name a command, as in `agentrl verl bash run.sh`")
    stand_in = str(Path(__file__).parent / "launch")
    # Our interpreter first: scripts call python3 and expect the trainer in it.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    packages = [str(Path(file).parents[1]) for file in (agentrl.__file__, __file__)]
    paths = [stand_in, *packages, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    _set_version(args.version, command)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UserError(f"agentrl verl: {command[0]} cannot be run: {error.strerror}") from None


def _set_version(asked: str | None, command: list[str]) -> None:
    """Pass the verl version, if known, to the command and its child processes. Raises UserError."""
    from agentrl_verl.reading.versions import VARIABLE, from_checkout, read_version

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
