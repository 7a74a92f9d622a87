"""The dataset calls, on rows in the request's `config.provided_data`: the server stores none."""

import json
from typing import Any

from starlette.exceptions import HTTPException

from agentrl_sandbox.server.schema import (
    Dataset,
    GetMetrics,
    GetMetricsFunction,
    GetPromptById,
    GetPrompts,
    TestConfig,
)
from agentrl_sandbox.server.service import Call, Service

Row = dict[str, Any]
TYPES = (None, "CommonOJDataset")
TASK = "Write a complete {language} program that reads standard input and writes its answer to standard output."


def rows(config: TestConfig) -> list[Row]:
    """The rows of the request. Raises HTTPException 400 without rows, or for an unsupported kind."""
    if config.dataset_type not in TYPES:
        raise HTTPException(400, f"dataset_type {config.dataset_type!r} is not served here; CommonOJDataset is")
    if config.provided_data is None:
        raise HTTPException(400, "no dataset is stored here; send its rows in config.provided_data")
    return config.provided_data if isinstance(config.provided_data, list) else [config.provided_data]


def find_row(config: TestConfig, key: int | str) -> Row:
    """The row of that id; a single row needs no id. Raises HTTPException 400."""
    found = rows(config)
    if isinstance(config.provided_data, dict):
        return found[0]
    for row in found:
        if str(row.get("id")) == str(key):
            return row
    raise HTTPException(400, f"config.provided_data: no row has the id {str(key)[:80]!r}")


def value(row: Row, key: str) -> Any:
    """A row's value, which may be JSON inside a string. Raises HTTPException 400."""
    content = row.get(key)
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise HTTPException(400, f"config.provided_data: {key} is a string that is not JSON") from None


def prompt(row: Row, config: TestConfig) -> dict[str, Any]:
    """A Prompt."""
    labels = value(row, "labels")
    task = TASK.format(language=config.language or "")
    text = f"{row.get('content', '')}\n\n{' '.join(task.split())}"
    return {"id": row.get("id", 0), "prompt": text, "labels": labels if isinstance(labels, dict) else {}}


async def get_prompts(service: Service, body: GetPrompts, call: Call) -> list[dict[str, Any]]:
    """Every row's prompt."""
    return [prompt(row, body.config) for row in rows(body.config)[body.offset : body.offset + body.limit]]


async def get_prompt_by_id(service: Service, body: GetPromptById, call: Call) -> dict[str, Any]:
    """One row's prompt."""
    return prompt(find_row(body.config, body.id), body.config)


async def list_ids(service: Service, body: Dataset, call: Call) -> list[int | str]:
    """Every row's id."""
    return [row.get("id", number) for number, row in enumerate(rows(body.config))]


async def get_metrics(service: Service, body: GetMetrics, call: Call) -> dict[str, Any]:
    """Empty: the results hold everything."""
    return {}


async def get_metrics_function(service: Service, body: GetMetricsFunction, call: Call) -> dict[str, Any]:
    """None."""
    return {"function": None}
