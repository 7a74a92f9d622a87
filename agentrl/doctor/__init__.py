"""Checks a run before it spends GPU time.

Names load on first use, so `agentrl.doctor.preflight` comes without what the other checks need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.doctor.diagnosis import Diagnosis, diagnose
    from agentrl.doctor.finding import Finding, Level

_HOMES = {"Diagnosis": "diagnosis", "Finding": "finding", "Level": "finding", "diagnose": "diagnosis"}

__all__ = ["Diagnosis", "Finding", "Level", "diagnose"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
