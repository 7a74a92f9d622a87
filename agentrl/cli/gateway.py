"""Serve a model to agents over OpenAI's, Anthropic's and Google's protocols, and keep each conversation token by token.

    agentrl gateway --model models/smollm2 --port 8000 --out seen.jsonl
    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=try-1 python my_agent.py

The API key, or KEY in http://127.0.0.1:8000/s/KEY/v1, names the conversation. --out gets each one as it ends, as
training would get it: after ten minutes without a request, and at Ctrl-C. `agentrl view seen.jsonl`
shows them. It takes the settings of `agentrl train` as well.
"""

import argparse
import asyncio
import os
import secrets
import signal
from contextlib import closing
from pathlib import Path

from agentrl.cli.common import add_config_arguments, load_config, print_notes, terminal, use_idle_cores
from agentrl.core.errors import plural
from agentrl_sandbox.guard import is_loopback

PORT = 8000
CONTEXT = 16_384
OUT = "gateway.jsonl"
TOKEN = "AGENTRL_GATEWAY_TOKEN"


def configure(parser: argparse.ArgumentParser) -> None:
    """Overrides, and where to listen."""
    add_config_arguments(parser)
    parser.add_argument("--model", metavar="PATH", help="the model: short for model.path=PATH")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1)")
    parser.add_argument(
        "--token", help=f"what API keys have to begin with (default: the variable {TOKEN}; made up for other hosts)"
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"port (default {PORT}; 0: any)")
    parser.add_argument(
        "--context", type=int, default=CONTEXT, metavar="N", help=f"tokens of prompt and answer (default {CONTEXT})"
    )
    parser.add_argument("--out", metavar="FILE", default=OUT, help=f"file for the conversations (default {OUT})")


def run(args: argparse.Namespace) -> None:
    """Serve until interrupted; write each conversation as it ends."""
    from agentrl.config.validate import ANSWERING
    from agentrl.core.outputs import check_file
    from agentrl.engines.sharing import model_length
    from agentrl.evaluation.settings import scoring_something, untrained

    model = [f"model.path={args.model}"] if args.model else []
    args.overrides = [*model, f"rollout.max_model_len={args.context}", *args.overrides]
    config = untrained(scoring_something(load_config(args, checks=ANSWERING)))
    check_file(args.out, "--out")
    use_idle_cores(config.trainer, config.rollout)
    from agentrl.config.schema.marks import FILTERS
    from agentrl.engines.engine import Sampling
    from agentrl.runtime.local import LocalRuntime
    from agentrl.tracking.dumps.jsonl import Appended

    console = terminal()
    token = args.token or os.environ.get(TOKEN, "") or ("" if is_loopback(args.host) else secrets.token_urlsafe(18))
    with closing(LocalRuntime(config)) as runtime:
        from agentrl.gateway.standalone import OpenGateway, serve

        runtime.publish_weights(0)
        rollout, kept = config.rollout, Appended(Path(args.out), runtime.rollouts.env.chat.decode)
        filters = {name: getattr(rollout, name) for name in FILTERS}
        sampling = Sampling(model_length(config), rollout.temperature, seed=config.trainer.seed, **filters)
        env, folder = runtime.rollouts.env, Path(f"{args.out}.sessions")
        gateway = OpenGateway(env, sampling, folder, args.host, args.port, token=token, ended=kept.add)
        key = f"{token}.try-1" if token else "try-1"
        stop, runner = asyncio.Event(), runtime.runner

        async def end() -> None:
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: runner.submit(end()))
        runner.run(serve(gateway, lambda url: console.print(INVITATION.format(url=url, key=key)), stop))
    if not kept.count:
        print_notes(["no agent has asked for anything: nothing is written"])
        return
    console.print(f"{plural(kept.count, 'conversation')}: agentrl view {args.out}")


INVITATION = """Serving at [bold cyan]{url}[/]  (Ctrl-C stops)
  OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}
  ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={key}
  GOOGLE_GEMINI_BASE_URL={url} GEMINI_API_KEY={key}"""
