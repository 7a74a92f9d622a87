"""POST /run_jupyter: cells in a new kernel, which is one program inside one sandbox."""

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files

from pydantic import ValidationError

from agentrl_sandbox.errors import SandboxError
from agentrl_sandbox.job import Busy, CommandResult, Job, Limits
from agentrl_sandbox.server.replies import Reply, command_reply, encoded, failure_reply, pod_name, succeeded, text
from agentrl_sandbox.server.schema import Cell, RunJupyter
from agentrl_sandbox.server.service import Call, Service

OUTPUT_BYTES = 16 << 20
"""Bytes of all cells together: pictures are large."""


async def run_jupyter(service: Service, body: RunJupyter, call: Call) -> Reply:
    """A RunJupyterResponse; after a time limit it holds the finished cells. Raises Busy."""
    try:
        result = await service.run(make_job(service, body), call, body.queue_timeout)
    except Busy:
        raise
    except SandboxError as error:
        call.fields |= {"verdict": "SandboxError", "why": type(error).__name__}
        failure = failure_reply(error, service.pool.isolation)
        del failure["compile_result"], failure["run_result"]
        return failure | {"driver": None, "cells": []}
    run = result.runs[0]
    cells = read_cells(run, len(body.cells))
    done = succeeded(run) and len(cells) == len(body.cells)
    call.fields["verdict"] = "Success" if done else "Failed"
    return {
        "status": call.fields["verdict"],
        "message": "",
        "driver": command_reply(run) | {"stdout": ""},
        "cells": cells,
        "executor_pod_name": pod_name(),
        "files": encoded(result.files),
        "isolation": result.isolation,
    }


def make_job(service: Service, body: RunJupyter) -> Job:
    """The driver, with the cells on its standard input."""
    limits = body.all_limits(body.total_timeout, service.settings.memory_mb)
    return Job(
        language="python",
        code=driver(),
        stdins=[json.dumps({"cells": body.cells, "cell_timeout": body.cell_timeout}).encode()],
        files=body.contents(),
        fetch=body.fetch_files,
        compile_limits=Limits(wall=0),
        run_limits=replace(limits, output_bytes=max(OUTPUT_BYTES, limits.output_bytes)),
    )


@cache
def driver() -> str:
    """Source of the notebook driver."""
    return (files(__package__) / "notebook_driver.py").read_text()


def read_cells(run: CommandResult, most: int) -> list[Reply]:
    """The cells that the driver reported, up to the first invalid line: a cell can write to the same stream."""
    cells: list[Reply] = []
    for line in text(run.stdout).split("\n")[:most]:
        try:
            cells.append(Cell.model_validate_json(line).model_dump())
        except ValidationError:
            break
    return cells
