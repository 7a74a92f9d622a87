"""Trajectories on disk: one JSONL file a step, one trajectory a line, and a hidden index of each file for viewers."""

from agentrl.tracking.dumps.jsonl import Appended, dump_file, load_trajectories, write_trajectories
from agentrl.tracking.dumps.records import Advantages, Record, token_texts, trajectory_record

__all__ = [
    "Advantages",
    "Appended",
    "Record",
    "dump_file",
    "load_trajectories",
    "token_texts",
    "trajectory_record",
    "write_trajectories",
]
