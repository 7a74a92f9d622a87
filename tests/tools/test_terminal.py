"""The terminal tools in an embedded container, through the tool session of a trajectory."""
import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
import pytest
from agentrl.containers.contract import ContainerSpec
from agentrl.containers.embedded.provider import EmbeddedProvider
from agentrl.tools import load_tools
