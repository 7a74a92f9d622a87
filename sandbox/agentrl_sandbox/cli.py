"""Run code that a model wrote, isolated from this host.

serve                     a server that speaks SandboxFusion's protocol
run FILE [--stdin TEXT]   one program
check                     which isolation works on this host, and which languages are installed
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from agentrl_sandbox.console import BOLD, DIM, GREEN, RED, YELLOW, Console
from agentrl_sandbox.errors import SandboxError, UsageError
from agentrl_sandbox.job import SESSIONS
from agentrl_sandbox.sandbox import TOKEN

if TYPE_CHECKING:
    from agentrl_sandbox.job import Job, Result

SUFFIXES = {
    ".py": "python",
    ".cpp": "cpp",
    ".cc": "cpp",
    ".js": "nodejs",
    ".mjs": "nodejs",
    ".ts": "typescript",
    ".java": "java",
    ".go": "go",
    ".rs": "rust",
    ".php": "php",
    ".rb": "ruby",
    ".pl": "perl",
    ".lua": "lua",
    ".R": "R",
    ".r": "R",
    ".sh": "bash",
    ".sql": "sql",
}
TIMED_OUT = 124
"""Exit code after a time limit, as that of timeout(1)."""


class Parser(argparse.ArgumentParser):
    """Raises UsageError for a mistake instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message}; `{self.prog} --help` lists the options")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of `agentrl-sandbox`. Exit codes: 1 the sandbox failed, 2 a mistake, 130 interrupted."""
    try:
        parser = Parser(
            prog="agentrl-sandbox", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        configure(parser)
        return run(parser.parse_args(argv))
    except (UsageError, SandboxError) as error:
        Console(sys.stderr).print(("error:", BOLD + RED), (" ".join(str(error).split()), RED))
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the three commands and their options."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="serve|run|check")
    _configure_serve(commands.add_parser("serve", help="a server that speaks SandboxFusion's protocol"))
    _configure_run(commands.add_parser("run", help="run one program"))
    check = commands.add_parser("check", help="which isolation works on this host, and which languages are installed")
    for command in commands.choices.values():
        pool = command.add_argument_group("isolation")
        pool.add_argument("--isolation", default="auto", metavar="TIER", help="auto, namespace, bwrap or landlock")
        pool.add_argument("--python", metavar="FILE", help="the interpreter that runs Python (default: this one)")
    check.add_argument("--json", action="store_true", help="print the report as JSON")


def _configure_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--token", help=f"bearer token that clients must send (default: the variable {TOKEN})")
    parser.add_argument("--public", action="store_true", help="serve other machines without a token")
    parser.add_argument("--slots", type=int, metavar="N", help="programs that run at once (default: by cores)")
    parser.add_argument(
        "--queue", type=int, default=16384, metavar="N", help="jobs that may wait (default: %(default)s)"
    )
    parser.add_argument(
        "--sessions", type=int, default=SESSIONS, metavar="N", help="sessions open at once (default: %(default)s)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=8.0,
        metavar="S",
        help="seconds beyond a request's time limits until it gets a 504, after which verl asks again (default: 8)",
    )
    parser.add_argument(
        "--memory-mb", type=int, default=4096, metavar="MIB", help="most memory of one run (default: %(default)s)"
    )
    parser.add_argument(
        "--max-body-mb", type=int, default=32, metavar="MIB", help="largest request (default: %(default)s)"
    )
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--log-code", action="store_true", help="log the programs, too")


def _configure_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the program")
    parser.add_argument("--language", metavar="NAME", help="default: by the file's suffix")
    parser.add_argument("--stdin", metavar="TEXT", help="standard input; - reads it from this command's own")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="S", help="seconds (default: %(default)s)")
    parser.add_argument("--memory-mb", type=int, default=1024, metavar="MIB", help="default: %(default)s")
    parser.add_argument("--url", help="a server that runs it, instead of this machine")
    parser.add_argument("--token", help=f"that server's token (default: the variable {TOKEN})")


def run(args: argparse.Namespace) -> int:
    """Run the command that the arguments name; its exit code. Raises UsageError, SandboxError."""
    return {"serve": serve, "run": run_file, "check": check}[args.action](args)


def serve(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    missing = [name for name in ("starlette", "uvicorn", "httptools", "pydantic") if find_spec(name) is None]
    if missing:
        raise UsageError(f"{missing[0]} is not installed: pip install 'agentrl[sandbox]', or 'agentrl-sandbox[server]'")
    from agentrl_sandbox.pool import Pool
    from agentrl_sandbox.server.logs import log_to
    from agentrl_sandbox.server.serve import check_bind, serve
    from agentrl_sandbox.server.settings import Settings

    names = ("host", "port", "public", "patience", "memory_mb", "max_body_mb", "log_code")
    settings = Settings(token=args.token or os.environ.get(TOKEN), **{name: getattr(args, name) for name in names})
    check_bind(settings)
    log_to(level=args.log_level)
    pool = Pool(
        isolation=args.isolation, slots=args.slots, queue=args.queue, python=args.python, sessions=args.sessions
    )
    serve(pool, settings, lambda url: announce(url, pool, settings.token is not None))
    return 0


def announce(url: str, pool: Any, guarded: bool) -> None:
    """Print the address, the isolation, and a request to try."""
    console = Console(sys.stderr)
    console.print("sandbox:", (f"{url},", BOLD), "with a token" if guarded else "without a token")
    why = "its tests passed at the start" if pool.isolation != "none" else "none was asked for"
    console.print("isolation:", (pool.isolation, BOLD), f"({why})")
    show_probes(console, [probe for probe in pool.report if not probe.ok])
    header = f' -H "Authorization: Bearer ${TOKEN}"' if guarded else ""
    console.print(f"try it:  curl {url}/run_code{header} -H 'Content-Type: application/json' \\")
    console.print("""    -d '{"language": "python", "code": "print(6 * 7)"}'""")


def show_probes(console: Console, report: Any) -> None:
    """Print a line for each tier that was tried."""
    for probe in report:
        mark = ("works", GREEN) if probe.ok else ("no   ", YELLOW)
        console.print(f"  {probe.tier:<10}", mark, probe.why)
        if not probe.ok and probe.fix:
            console.print((f"  {'':<10} fix: {probe.fix}", DIM))


def run_file(args: argparse.Namespace) -> int:
    """Run one program; its output is this command's, and so is its return code."""
    result = asyncio.run(_run_job(make_job(args), args))
    last = result.runs[-1] if result.runs else result.compiled
    assert last is not None
    for stream, output in ((sys.stdout, last.stdout), (sys.stderr, last.stderr)):
        stream.buffer.write(output)
        stream.flush()
    usage = f"{last.status}, {last.execution_time:.3f} s, {last.cpu_time:.3f} s CPU, {last.memory_peak_mb:.0f} MiB"
    notes = [usage, f"limit hit: {last.limit_hit}" if last.limit_hit else "", f"isolation: {result.isolation}"]
    Console(sys.stderr).print(("; ".join(filter(None, notes)), DIM))
    if last.return_code is None:
        return TIMED_OUT
    return last.return_code if last.return_code >= 0 else 128 - last.return_code


def make_job(args: argparse.Namespace) -> "Job":
    """The job that the arguments describe. Raises UsageError."""
    from agentrl_sandbox.job import Job, Limits

    language = args.language or SUFFIXES.get(args.file.suffix)
    if language is None:
        raise UsageError(f"{args.file}: the language is unknown; say --language NAME")
    code = read_program(args.file)
    stdin = sys.stdin.buffer.read() if args.stdin == "-" else (args.stdin or "").encode()
    limits = Limits(wall=args.timeout, memory_mb=args.memory_mb)
    return Job(language, code, stdins=[stdin], compile_limits=Limits(wall=60), run_limits=limits)


def read_program(file: Path) -> str:
    """The text of a file. Raises UsageError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8: save it as UTF-8") from None


async def _run_job(job: "Job", args: argparse.Namespace) -> "Result":
    from agentrl_sandbox.client import Client
    from agentrl_sandbox.pool import Pool

    token = args.token or os.environ.get(TOKEN)
    runner: Any = Client(args.url, token=token) if args.url else Pool(isolation=args.isolation, python=args.python)
    try:
        await runner.start()
        result: Result = await runner.run(job)
        return result
    finally:
        await runner.close()


def check(args: argparse.Namespace) -> int:
    """Print which isolation works and which languages are installed; 1 where no isolation works."""
    report, languages, memory = asyncio.run(_survey(args))
    code = 0 if any(probe.ok for probe in report) else 1
    if args.json:
        tiers = [{"tier": probe.tier, "ok": probe.ok, "why": probe.why, "fix": probe.fix} for probe in report]
        sys.stdout.write(json.dumps({"isolation": tiers, "memory": memory, "languages": languages}, indent=2) + "\n")
        return code
    console = Console(sys.stdout)
    console.print(("isolation", BOLD))
    show_probes(console, report)
    console.print(("limits", BOLD))
    console.print("  enforced by the kernel for each process and each mount, and by polling for all processes of a run")
    console.print((f"  {memory}", DIM))
    console.print(("languages", BOLD))
    for name, why in languages.items():
        console.print(f"  {name:<12}", ("no   ", YELLOW) if why else ("works", GREEN), why)
    return code


async def _survey(args: argparse.Namespace) -> tuple[list[Any], dict[str, str], str]:
    """The probe of every tier, {language: why it does not work, or ""} in the first tier that works, and how that
    tier limits memory."""
    from agentrl_sandbox.isolation import TIERS
    from agentrl_sandbox.languages import RECIPES
    from agentrl_sandbox.pool import Pool

    report: list[Any] = []
    languages: dict[str, str] = {}
    memory = "nothing is limited"
    for tier in [name for name in TIERS if name != "none"] if args.isolation == "auto" else [args.isolation]:
        pool = Pool(isolation=tier, python=args.python)
        try:
            await pool.start()
        except UsageError:
            if not pool.report:  # not tried at all
                raise
        report += pool.report
        if pool.report[-1].ok and not languages:
            answers = await asyncio.gather(*(_try_language(pool, name) for name in RECIPES))
            languages = dict(zip(RECIPES, answers, strict=True))
            memory = pool.memory()
        await pool.close()
    return report, languages, memory


async def _try_language(pool: Any, name: str) -> str:
    """Why the test program of a language does not run; empty if it does."""
    from agentrl_sandbox.job import Job, Limits
    from agentrl_sandbox.languages import RECIPES

    recipe = RECIPES[name]
    limits = Limits(wall=60)
    job = Job(name, recipe.hello, stdins=[recipe.stdin], compile_limits=limits, run_limits=limits)
    try:
        result = await pool.run(job)
    except SandboxError as error:
        return str(error)
    last = result.runs[-1] if result.runs else result.compiled
    if last is not None and recipe.expected in last.stdout:
        return ""
    words = last.stderr.decode("utf-8", "replace").strip().split("\n") if last else [""]
    return f"its self-test failed: {words[-1][:200]}"
