"""vLLM's OpenAI server, with the calls of its development mode.

Known traps that a line here exists for:
- `ignore_eos` spares the model's own end token only, and without it that token ends a request nobody asked it to end;
- `/abort_requests` knows a request by the name that the completions endpoint makes of ours.
"""

import asyncio
import base64
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl.errors import InfraError, UserError
from agentrl.rollout.engine import Sampling
from agentrl.rollout.engines.remote.dialect import Answer, Group
from agentrl.rollout.engines.remote.http import Http, Refused, quietly
from agentrl.rollout.engines.remote.settings import Settings
from agentrl.rollout.engines.remote.weights.bucket import Bucket
from agentrl.rollout.engines.vllm.flags import command, environment

OLDEST = (0, 22)
CONTROL = 300.0
"""Seconds that a call which draws nothing may take."""
