"""What every engine in a server of its own needs: HTTP, processes, replicas, weights on their way.

An engine adds a `Dialect`: its command line and its HTTP calls.
"""

from agentrl.rollout.engines.remote.dialect import Answer, Dialect
from agentrl.rollout.engines.remote.engine import RemoteEngine
from agentrl.rollout.engines.remote.http import Http, Lost, Refused
from agentrl.rollout.engines.remote.process import ServerProcess, StartFailed
from agentrl.rollout.engines.remote.replica import Replica

__all__ = ["Answer", "Dialect", "Http", "Lost", "Refused", "RemoteEngine", "Replica", "ServerProcess", "StartFailed"]
