"""The Python API: what `import agentrl` offers. docs/python.md lists the names and says which are stable."""

from agentrl.api.result import Result as Result
from agentrl.api.run import TrainingRun as TrainingRun
from agentrl.api.sampling import evaluate as evaluate
from agentrl.api.sampling import rollout as rollout
from agentrl.api.training import sft as sft
from agentrl.api.training import train as train
from agentrl.api.training import training as training
from agentrl.api.typed import Settings as Settings
from agentrl.api.typed import SftSettings as SftSettings
from agentrl.tracking.callbacks import Callback as Callback
from agentrl.tracking.callbacks import Step as Step
