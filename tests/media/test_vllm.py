"""Images through vLLM itself, on this machine's CPU: it reads the tokens that are trained on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.engines.servers.backend import ServerAnswer
from agentrl.engines.servers.installation import find_python
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.vllm import VLLM, images
from tests.media import served, vision_model

PYTHON = find_python("vllm", "vllm")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PYTHON is None, reason="`agentrl engine install vllm` comes first"),
]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each request with images, whether the server said that it read exactly the tokens it was sent."""
    answers: list[bool] = []

    def spying(answer: Mapping[str, Any], ids: Sequence[int], candidates: int) -> ServerAnswer:
        answers.append(answer["prompt_token_ids"] == ids)
        return read(answer, ids, candidates)

    read = images.read
    monkeypatch.setattr(images, "read", spying)
    return answers


def test_a_run(tmp_path: Path, told: list[bool]) -> None:
    served.check_run(tmp_path, "vllm", told)


async def test_images_reach_the_server(tmp_path: Path, told: list[bool]) -> None:
    place = vision_model.folder(tmp_path / "model", size=vision_model.WIDE)  # vLLM has no attention for smaller heads
    backend = VLLM(ServerSettings(str(PYTHON), str(place), "cpu", "float32", 512, 8, takes_images=True))
    await served.check_parts(tmp_path, place, backend, told)
