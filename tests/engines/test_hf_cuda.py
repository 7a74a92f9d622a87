"""The conformance suite on a GPU."""

from collections.abc import AsyncIterator

import pytest

from agentrl.engines.hf import HFEngine
from tests.engines import tiny
from tests.engines.conformance import CHECKS, Check, Subject

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["llama", "qwen3", "lora", "fallback"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    models = {"llama": tiny.llama, "qwen3": tiny.qwen3, "lora": tiny.lora, "fallback": tiny.gpt2}
    model = models[request.param]().cuda()
    engine = HFEngine(model, max_num_seqs=32, max_model_len=2500)
    await engine.start()
    yield Subject(
        engine,
        logits=lambda ids: tiny.logits(model, ids),
        vocabulary=tiny.VOCABULARY,
        change_weights=lambda: tiny.change(model),
    )
    await engine.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance(subject: Subject, check: Check) -> None:
    await check(subject)
