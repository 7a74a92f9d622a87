"""Rows and batches of rows: reading, checking, filtering, shuffling."""

from agentrl.data.dataset import load_dataset
from agentrl.data.loader import Loader
from agentrl.data.overlong import filter_overlong, truncate
from agentrl.data.rows import make_row, read_rows
from agentrl.trajectory.row import Row

__all__ = ["Loader", "Row", "filter_overlong", "load_dataset", "make_row", "read_rows", "truncate"]
