"""Checks a run before it spends GPU time."""

from agentrl.doctor.diagnosis import Diagnosis, diagnose
from agentrl.doctor.finding import Finding, Level

__all__ = ["Diagnosis", "Finding", "Level", "diagnose"]
