"""Structured logs: one line of JSON per event, without the programs."""

import json
import logging
import sys
import time
from typing import TextIO


class JsonLines(logging.Formatter):
    """Time, level, event, and the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and "traceback" not in line:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to(stream: TextIO | None = None, level: str = "info") -> None:
    """Send the server's log, and uvicorn's warnings, to a stream (stderr)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name, least in (("agentrl_sandbox", level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)
