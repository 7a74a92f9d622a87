"""Loggers to services outside: one small file each, imported when `trainer.logger` names it."""

from agentrl.tracking.services.service import RunInfo, Service

__all__ = ["RunInfo", "Service"]
