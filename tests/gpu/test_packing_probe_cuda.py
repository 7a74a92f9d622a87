"""The packing probe with the kernels of a GPU: the verdicts of the CPU, for models in each precision of a run."""

import pytest
import torch

from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.packing_probe import pack_where_exact
from tests.training.test_packing_probe import ALONE_ONLY, PACKABLE, model_of

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", [*PACKABLE, *ALONE_ONLY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_verdicts_are_those_of_the_cpu(name: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    module = model_of(*(PACKABLE | ALONE_ONLY)[name]).to("cuda", dtype)
    assert pack_where_exact(ModelHandle(module), torch.device("cuda")) is (name in PACKABLE), caplog.text
