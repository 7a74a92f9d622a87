"""A request's own extraction logic: Python of unknown origin, which runs inside the sandbox."""

import json
from importlib.resources import files

from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from agentrl_sandbox.job import Job, Limits
from agentrl_sandbox.server.extraction import CodeBlock
from agentrl_sandbox.server.replies import succeeded, text
from agentrl_sandbox.server.service import Call, Service

PROGRAM = """
import dataclasses, json, sys
import extraction
sent = json.load(sys.stdin)
blocks = extraction.custom_blocks(sent["completion"], sent["logic"])
print(); print(json.dumps([[int(b.priority), str(b.language), str(b.code)] for b in blocks]))
"""
BLOCKS = TypeAdapter(list[tuple[int, str, str]])
LIMITS = Limits(wall=10, memory_mb=512)


async def extract_by_logic(service: Service, completion: str, logic: str, call: Call) -> list[CodeBlock]:
    """The blocks that the logic submits. Raises HTTPException 400 if it fails, Busy, SandboxError."""
    job = Job(
        language="python",
        code=PROGRAM,
        stdins=[json.dumps({"completion": completion, "logic": logic}).encode()],
        files={"extraction.py": (files(__package__) / "extraction.py").read_bytes()},
        compile_limits=LIMITS,
        run_limits=LIMITS,
    )
    run = (await service.run(job, call)).runs[0]
    lines = text(run.stdout).strip().split("\n")
    try:
        blocks = BLOCKS.validate_json(lines[-1]) if succeeded(run) else None
    except ValidationError:
        blocks = None
    if blocks is None:
        raise HTTPException(400, f"config.custom_extract_logic failed: {text(run.stderr)[-500:]}")
    return [CodeBlock(*block) for block in blocks]
