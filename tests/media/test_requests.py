"""What servers are asked for with images, and what is made of answers to other tokens; no server runs."""

from typing import Any

import pytest
import torch
from PIL import Image

from agentrl.core.errors import UserError
from agentrl.engines.engine import Sampling
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.sglang import backend as sglang
from agentrl.engines.vllm import VLLM, images
from agentrl.engines.vllm.backend import parameters
from agentrl.http.client import Http
from agentrl.trajectory.medium import Medium

IDS = [5, 9, 9, 9, 6]
API = {"paths": {images.PATH: {}}, "components": {"schemas": {"GenerateRequest": {"properties": {}}}}}


def medium(kind: str = "image") -> Medium:
    picture = Image.new("RGB", (28, 28), "red")
    return Medium(kind, picture, "<pad>" * 3, (9, 9, 9), (9,), {9: 1}, {"pixel_values": torch.zeros(4, 2)})


def test_images_are_sent_as_placeholders() -> None:
    asked = images.question(IDS, [medium()], parameters(Sampling(8, seed=1), len(IDS)))
    assert asked["token_ids"] == sglang.pictures(IDS, [medium()])["input_ids"] == [5, 9, 6]
    assert asked["content_parts"] == [{"type": "image_url", "url": medium().data_url()}]
    assert asked["sampling_params"]["max_tokens"] == 8
    assert asked["return_token_ids"] is True


@pytest.mark.parametrize("ask", [lambda m: images.question(IDS, m, {}), lambda m: sglang.pictures(IDS, m)])
def test_videos_are_refused(ask: Any) -> None:
    with pytest.raises(UserError, match="gets no videos: it would choose and size their frames itself; use hf"):
        ask([medium("video")])


def test_an_answer_to_other_tokens_is_refused() -> None:
    content = [{"token_id": 7, "logprob": -0.5, "top_logprobs": [{"token_id": 7, "logprob": -0.5}]}]
    answer = {"prompt_token_ids": IDS, "choices": [{"logprobs": {"content": content}, "finish_reason": "stop"}]}
    got = images.read(answer, IDS, 1)
    assert (got.token_ids, got.logprobs, got.finish_reason, got.candidates) == ([7], [-0.5], "stop", ((7, -0.5),))
    for told, count in ((IDS[:-1], 4), (None, "unknown")):
        with pytest.raises(UserError, match=rf"read other tokens than it was sent \({count} of 5\)"):
            images.read({**answer, "prompt_token_ids": told}, IDS, 0)


async def test_a_server_without_eyes_is_named() -> None:
    assert not images.takes_images(API)  # of a version that knows the call, and no images there
    API["components"]["schemas"]["GenerateRequest"]["properties"] = {"content_parts": {}}  # type: ignore[index]
    assert images.takes_images(API)
    assert not images.takes_images({"paths": {}})
    backend, http = VLLM(ServerSettings("python", "model", "cpu", "float32", 64, 2)), Http("http://127.0.0.1:1")
    backend._models[http.url] = "policy"
    with pytest.raises(UserError, match="takes no images: start vLLM .* with --enable-scale-out"):
        await backend.generate(http, "a", IDS, Sampling(8), None, [medium()])


def test_a_model_that_sees_keeps_its_tokenizer() -> None:
    for sees in (False, True):
        words = VLLM(ServerSettings("python", "model", "cpu", "float32", 64, 2, takes_images=sees)).command(1)
        assert ("--skip-tokenizer-init" in words, "--enable-scale-out" in words) == (not sees, sees)
