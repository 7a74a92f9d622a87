"""Images through SGLang itself: it reads the tokens that are trained on.

The run takes a GPU where there is one: `pytest tests/media/test_sglang.py -m engine -k run -s` prints what it found.
"""

from pathlib import Path

import pytest

from agentrl.engines.servers.installation import find_python
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.sglang import SGLang
from agentrl.engines.sglang import backend as sglang
from tests.media import served, vision_model

PYTHON = find_python("sglang", "sglang")
# Kernels that need no compiling, and attention that is there whatever the build.
ON_GPU = [
    "rollout.gpu_memory_utilization=0.2",
    "+rollout.engine_kwargs.sglang.attention_backend=triton",
    "+rollout.engine_kwargs.sglang.sampling_backend=pytorch",
    "+rollout.engine_kwargs.sglang.cuda_graph_backend_prefill=disabled",
    "+rollout.engine_kwargs.sglang.mm_attention_backend=sdpa",
]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PYTHON is None, reason="`agentrl engine install sglang` comes first"),
]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each request with images, whether the server said that it read exactly the tokens it was sent."""
    answers: list[bool] = []

    def spying(answer: dict, ids: list[int]) -> bool:
        answers.append(answer.get("prompt_token_ids") == ids)
        return as_sent(answer, ids)

    as_sent = sglang._as_sent
    monkeypatch.setattr(sglang, "_as_sent", spying)
    return answers


def test_a_run(tmp_path: Path, told: list[bool]) -> None:
    served.check_run(tmp_path, "sglang", told, *(ON_GPU if served.GPU else []))


async def test_images_reach_the_server(tmp_path: Path, told: list[bool]) -> None:
    place = vision_model.folder(tmp_path / "model")
    backend = SGLang(ServerSettings(str(PYTHON), str(place), "cpu", "float32", 512, 8))
    await served.check_parts(tmp_path, place, backend, told)
