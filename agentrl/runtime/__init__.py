"""Where the work of a run happens and what it leaves behind."""

from agentrl.runtime.checkpoints import Checkpoints
from agentrl.runtime.feed import Feed, load_feed
from agentrl.runtime.journal import Journal
from agentrl.runtime.local import LocalRuntime
from agentrl.runtime.opening import open_runtime
from agentrl.runtime.runtime import Metrics, Runtime
from agentrl.runtime.sampler import Sampler

__all__ = [
    "Checkpoints",
    "Feed",
    "Journal",
    "LocalRuntime",
    "Metrics",
    "Runtime",
    "Sampler",
    "load_feed",
    "open_runtime",
]
