"""What would go wrong in a run, found out before a GPU is spent on it."""

from agentrl.doctor.finding import Finding, Level
from agentrl.doctor.patient import Patient, examine

__all__ = ["Finding", "Level", "Patient", "examine"]
