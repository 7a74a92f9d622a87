"""Show runs on a local web page: curves, conversations token by token, timelines of steps.

    agentrl view runs/demo              # one run
    agentrl view runs                   # all runs in a folder, to compare them
    agentrl view dump.jsonl             # a file of `agentrl rollout --out dump.jsonl`

Only this machine can open the page. From another machine: ssh -L 8265:localhost:8265 HOST.
"""

import argparse
from contextlib import suppress

from agentrl.cli.common import terminal
from agentrl.core.errors import plural

PORT = 8265


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run or of several runs, or a dump file")
    parser.add_argument("--port", type=int, default=PORT, help=f"port on this machine (default {PORT}; 0: any)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> None:
    """Serve until interrupted."""
    import webbrowser

    from agentrl.view.api import Api
    from agentrl.view.server import ViewServer

    api = Api(args.runs)
    server = ViewServer(api, args.port)
    named = next(iter(api.runs)) if len(api.runs) == 1 else plural(len(api.runs), "run")
    terminal().print(f"{named} at [bold cyan]{server.url}/[/]  (Ctrl-C stops)")
    if args.open:
        webbrowser.open(server.url)
    with suppress(KeyboardInterrupt):
        server.serve_forever()
