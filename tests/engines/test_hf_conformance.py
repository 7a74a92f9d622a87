"""The hf engine passes the conformance suite on each kind of model it runs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrl.engines.hf import HFEngine
from tests.engines import tiny
from tests.engines.conformance import CHECKS, Check, Subject

pytestmark = pytest.mark.integration

MODELS = {"llama": tiny.llama, "qwen3": tiny.qwen3, "lora": tiny.lora, "fallback": tiny.gpt2}


def subject_on(device: str) -> Any:
    """A fixture: the engine on `device` with each kind of model."""

    @pytest.fixture(name="subject", params=MODELS)
    async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
        model = MODELS[request.param]().to(device)
        engine = HFEngine(model, max_num_seqs=32, max_model_len=2500)
        await engine.start()
        yield Subject(
            engine,
            logits=lambda ids: tiny.logits(model, ids),
            vocabulary=tiny.VOCABULARY,
            change_weights=lambda: tiny.change(model),
            static=request.param == "fallback",
        )
        await engine.close()

    return subject


subject = subject_on("cpu")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance(subject: Subject, check: Check) -> None:
    await check(subject)
