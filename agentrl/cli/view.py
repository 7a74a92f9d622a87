"""Show runs on a local web page: curves, conversations token by token, timelines of steps.

    agentrl view runs/demo              # one run
    agentrl view runs                   # all runs in a folder, to compare them
    agentrl view dump.jsonl             # a file of `agentrl rollout --out dump.jsonl`
    agentrl view runs/demo --atif DIR   # no page: its trajectories as ATIF, for Harbor and other readers

Only this machine can open the page. From another machine: ssh -L 8265:localhost:8265 HOST.
"""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli.common import terminal
from agentrl.core.errors import plural
from agentrl.core.outputs import check_folder

if TYPE_CHECKING:
    from agentrl.view.runs import Run

PORT = 8265


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run or of several runs, or a dump file")
    parser.add_argument("--port", type=int, default=PORT, help=f"port on this machine (default {PORT}; 0: any)")
    parser.add_argument("--atif", metavar="FOLDER", help="write the trajectories there as files of ATIF, and end")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> None:
    """Serve until interrupted."""
    import webbrowser

    from agentrl.view.api import Api
    from agentrl.view.runs import find_runs
    from agentrl.view.server import ViewServer

    if args.atif:
        export(find_runs(args.runs), Path(args.atif))
        return
    api = Api(args.runs)
    server = ViewServer(api, args.port)
    named = next(iter(api.runs)) if len(api.runs) == 1 else plural(len(api.runs), "run")
    terminal().print(f"{named} at [bold cyan]{server.url}/[/]  (Ctrl-C stops)")
    if args.open:
        webbrowser.open(server.url)
    with suppress(KeyboardInterrupt):
        server.serve_forever()


def export(runs: "Sequence[Run]", folder: Path) -> None:
    """Write all trajectories as ATIF; those of several runs in a folder for each."""
    from agentrl.tracking.dumps.atif import write_atif
    from agentrl.tracking.dumps.jsonl import load_trajectories
    from agentrl.view.runs import dumped

    check_folder(folder, "--atif")
    for run in runs:
        place = folder / run.name if len(runs) > 1 else folder
        place.mkdir(parents=True, exist_ok=True)
        for record in (record for file in dumped([run]) for record in load_trajectories(file)):
            write_atif(record, place)
    terminal().print(f"{plural(len(list(folder.rglob('*.json'))), 'file')} in {folder}")
