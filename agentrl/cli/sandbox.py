"""Run code that a model wrote, isolated from this host.

agentrl sandbox serve                     a server that speaks SandboxFusion's protocol
agentrl sandbox run FILE [--stdin TEXT]   one program
agentrl sandbox check                     which isolation works on this host, and which languages are installed
"""

import argparse

from agentrl.core.sandbox import agentrl_errors
from agentrl_sandbox import cli


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the three commands."""
    cli.configure(parser)


def run(args: argparse.Namespace) -> int:
    """Run one of the three. Raises UserError, InfraError."""
    with agentrl_errors():
        return cli.run(args)
