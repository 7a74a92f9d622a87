"""Rows and batches of rows: reading, checking, filtering, shuffling."""

from agentrl.data.dataset import load_dataset
from agentrl.data.loader import Loader
from agentrl.data.overlong import filter_overlong, truncate
from agentrl.data.rows import Columns, make_row, read_rows
from agentrl.trajectory.row import Row

__all__ = ["Columns", "Loader", "Row", "filter_overlong", "load_dataset", "make_row", "read_rows", "truncate"]
