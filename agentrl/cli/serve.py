"""Serve a model to training programs over Tinker's API: the loop is theirs, models and samples are here.

    agentrl serve model.path=models/smollm2
    TINKER_BASE_URL=http://127.0.0.1:8600 TINKER_API_KEY=tml-try python my_loop.py

Each API key has models of its own. It takes the settings of `agentrl train`; sessions, models and checkpoints are in
trainer.default_local_dir (default runs/serve), and a restart goes on from there.
"""

import argparse
import asyncio
import secrets
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from agentrl.cli.common import add_config_arguments, load_config, terminal, use_idle_cores
from agentrl.config.derived import processes
from agentrl.core.paths import absolute
from agentrl.runtime.ray import need_ray
from agentrl_sandbox.guard import is_loopback

PORT = 8600
KEY = "trainer.default_local_dir"
DEFAULTS = ("rollout.max_model_len=8192", f"{KEY}=runs/serve")


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
    where = f"tml-{token.removeprefix('tml-')}", args.host, args.port
    from agentrl.training.checkpoint.restarts import run_with_restarts
    from agentrl.training.checkpoint.run_lock import locked
    from agentrl.training.checkpoint.run_start import folder_of

    with locked(folder := folder_of(config, KEY), KEY):
        run_with_restarts(lambda config: asyncio.run(_serve(config, *where)), config, folder)


async def _serve(config: Any, token: str, host: str, port: int) -> None:
    from agentrl.serve.app import serve
    from agentrl.serve.samplers import open_samplers
    from agentrl.serve.service import Service
    from agentrl.training import load_tokenizer, stop_token_ids

    tokenizer = load_tokenizer(config.model)
    ends, folder = stop_token_ids(config.model) or (tokenizer.eos_token_id,), Path(config.trainer.default_local_dir)
    with ExitStack() as stack:
        models = _open(config, stack)
        samplers = await open_samplers(config, models, tokenizer)
        service = Service(models, samplers, absolute(config.model.path), config.model.lora_alpha, ends, folder)
        show = terminal().print
        await serve(service, token, host, port, lambda url: show(INVITATION.format(url=url, key=f"{token}try")))


def _open(config: Any, stack: ExitStack) -> Any:
    """The models, in this process or on ranks."""
    if processes(config.trainer, config.rollout) == 1:
        from agentrl.serve.models import Models

        return Models(config)
    need_ray(config)
    from agentrl.serve.ranks import RayModels

    return stack.enter_context(closing(RayModels(config)))


INVITATION = """Serving at [bold cyan]{url}[/]  (Ctrl-C stops)
  TINKER_BASE_URL={url} TINKER_API_KEY={key}"""
