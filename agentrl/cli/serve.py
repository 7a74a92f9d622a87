"""Serve a model to training programs over Tinker's API: the loop is theirs, models and samples are here.

    agentrl serve model.path=models/smollm2
    TINKER_BASE_URL=http://127.0.0.1:8600 TINKER_API_KEY=tml-try python my_loop.py

Each API key has models of its own. It takes the settings of `agentrl train`; sessions, models and checkpoints are in
trainer.default_local_dir (default runs/serve), and a restart goes on from there.
"""

import argparse
import asyncio
import secrets
from pathlib import Path
from typing import Any

from agentrl.cli.common import add_config_arguments, load_config, terminal, use_idle_cores
from agentrl.core.paths import absolute
from agentrl_sandbox.guard import is_loopback

PORT = 8600
DEFAULTS = ("rollout.max_model_len=8192", "trainer.default_local_dir=runs/serve")


def configure(parser: argparse.ArgumentParser) -> None:
    """Overrides, and where to listen."""
    add_config_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=PORT, help=f"port (default {PORT}; 0: any)")
    parser.add_argument("--token", help="what API keys have after tml- (default: made up for other hosts)")


def run(args: argparse.Namespace) -> None:
    """Serve until interrupted."""
    from agentrl.config.validate import ANSWERING

    args.overrides = [*DEFAULTS, *args.overrides]
    config = load_config(args, checks=ANSWERING)
    use_idle_cores(config.trainer, config.rollout)
    token = args.token or ("" if is_loopback(args.host) else f"{secrets.token_urlsafe(18)}.")
    # The SDK takes no keys without tml-.
    asyncio.run(_serve(config, f"tml-{token.removeprefix('tml-')}", args.host, args.port))


async def _serve(config: Any, token: str, host: str, port: int) -> None:
    from agentrl.serve.app import serve
    from agentrl.serve.models import Models
    from agentrl.serve.samplers import open_samplers
    from agentrl.serve.service import Service
    from agentrl.training import load_tokenizer, stop_token_ids

    models, tokenizer = Models(config), load_tokenizer(config.model)
    samplers = await open_samplers(config, models.base, tokenizer)
    ends, folder = stop_token_ids(config.model) or (tokenizer.eos_token_id,), Path(config.trainer.default_local_dir)
    service = Service(models, samplers, absolute(config.model.path), config.rollout.max_model_len, ends, folder)
    await serve(service, token, host, port, lambda url: terminal().print(INVITATION.format(url=url, key=f"{token}try")))


INVITATION = """Serving at [bold cyan]{url}[/]  (Ctrl-C stops)
  TINKER_BASE_URL={url} TINKER_API_KEY={key}"""
