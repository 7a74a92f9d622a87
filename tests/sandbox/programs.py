"""Short ways to run something."""

from agentrl_sandbox.job import CommandResult, Job, Limits
from agentrl_sandbox.pool import Pool


async def run(pool: Pool, code: str, stdin: bytes = b"", *, language: str = "python", **limits: float) -> CommandResult:
    """One run, with a wall limit that a busy machine does not reach."""
    bounds = Limits(**{"wall": 60.0, **limits})  # type: ignore[arg-type]
    return (await pool.run(Job(language, code, [stdin], run_limits=bounds))).runs[0]
