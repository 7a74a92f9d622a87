"""Engines that run as servers: HTTP, processes, replicas, transfer of weights.

Each engine adds a `ServerBackend`: its command line and its HTTP calls.
"""

from agentrl.engines.servers.backend import ServerBackend
from agentrl.engines.servers.process import ServerProcess, StartFailed
from agentrl.engines.servers.remote_engine import RemoteEngine
from agentrl.engines.servers.replica import Replica
