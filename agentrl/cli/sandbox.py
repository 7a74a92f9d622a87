"""Run untrusted code, isolated from this host.

agentrl sandbox serve                     a server that speaks SandboxFusion's protocol
agentrl sandbox run FILE [--stdin TEXT]   one program
agentrl sandbox check                     show the isolation and the languages of this host
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
