"""Where the work of a run happens: this process, or Ray workers."""

from agentrl.runtime.local import LocalRuntime
from agentrl.runtime.opening import open_runtime
from agentrl.runtime.runtime import Metrics, Runtime

__all__ = ["LocalRuntime", "Metrics", "Runtime", "open_runtime"]
