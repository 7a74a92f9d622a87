"""A vision model over HTTP: passes and samples of prompts with images are those of plain transformers."""

import base64
import io
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from agentrl.config.schema import Config
from agentrl.serve import wire
from agentrl.serve.app import App
from agentrl.serve.models import Models
from agentrl.serve.samplers import open_samplers
from agentrl.serve.service import Service
from agentrl.serve.wire import MESSAGES, PROTOBUF
from tests.media.vision_model import folder, load, picture
from tests.serve.test_service import Client

pytestmark = pytest.mark.integration

BEFORE, AFTER = [70, 71, 72], [73, 74, 75, 76, 77]
RED, BLUE = picture("red"), picture("blue")


def png(image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return folder(tmp_path_factory.mktemp("vision") / "seeing")


@asynccontextmanager
async def client_of(model: Path, runs: Path):
    config = Config()
    config.model.path, config.trainer.device, config.rollout.max_model_len = str(model), "cpu", 256
    models, tokenizer = Models(config), load(model)
    service = Service(models, await open_samplers(config, models, tokenizer), model, 32.0, (2,), runs)
    await service.start()
    transport = httpx.ASGITransport(App(service, ""))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=100) as http:
            client = Client(http)
            client.session = (await client.post("create_session"))["session_id"]
            body = {"session_id": client.session, "model_seq_id": 0, "base_model": str(model)}
            answer = await client.post("create_model", body | {"lora_config": {"rank": 4}})
            client.model = (await client.result(answer))["model_id"]
            yield client
    finally:
        await service.close()


def plain(model: Path, image, after=AFTER) -> tuple[list[int], torch.Tensor]:
    """The tokens of a prompt, and the log-probs of all but the first, by transformers alone."""
    shown = dict(Qwen2VLImageProcessorPil.from_pretrained(model)(images=[image], return_tensors="pt"))
    network = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    mark = network.config.image_token_id
    count = int(shown["image_grid_thw"].prod()) // 4
    ids = torch.tensor([[*BEFORE, *[mark] * count, *after]])
    with torch.no_grad():
        logits = network(input_ids=ids, mm_token_type_ids=(ids == mark).int(), **shown).logits[0]
    return ids[0].tolist(), logits[:-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]


def pass_body(model, seq, image: bytes, ids, expected=0) -> bytes:
    message = MESSAGES["ForwardBackwardRequest"](model_id=model, seq_id=seq, loss_fn="cross_entropy")
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.array(BEFORE, "<i4").tobytes()
    datum.model_input.add().image.MergeFrom(MESSAGES["Image"](data=image, format="png", expected_tokens=expected))
    datum.model_input.add().encoded_text.tokens = np.array(AFTER[:-1], "<i4").tobytes()
    weights = np.array([0] * (len(ids) - 1 - len(AFTER)) + [1] * len(AFTER), "<f4")
    for name, column in (("target_tokens", np.array(ids[1:], "<i8")), ("weights", weights)):
        tensor = datum.loss_fn_inputs[name]
        tensor.dense, tensor.dtype = column.tobytes(), 2 if name == "target_tokens" else 1
    return message.SerializeToString()


def prompt_of(image, ids=AFTER, **more) -> dict:
    data = base64.b64encode(png(image)).decode()
    chunks = [{"tokens": BEFORE}, {"type": "image", "data": data, "format": "png", **more}, {"tokens": ids}]
    return {"chunks": chunks}


async def test_passes_and_samples_are_those_of_transformers(model, tmp_path) -> None:
    (red_ids, red), (blue_ids, blue) = plain(model, RED), plain(model, BLUE)
    assert red_ids == blue_ids
    assert (red - blue)[-len(AFTER) :].abs().max() > 1e-3, "the images tell the prompts apart"
    async with client_of(model, tmp_path) as client:
        for seq, (image, expected) in enumerate(((RED, red), (BLUE, blue)), 1):
            submitted = await client.post("forward_backward", pass_body(client.model, seq, png(image), red_ids))
            message = MESSAGES["ForwardBackwardOutput"].FromString(await client.result(submitted, PROTOBUF))
            found = np.frombuffer(message.loss_fn_outputs[0].fields["logprobs"].data, "<f4")
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        base = {"session_id": client.session, "sampling_session_seq_id": 1, "base_model": str(model)}
        sampler = (await client.post("create_sampling_session", base))["sampling_session_id"]
        asked = []
        for seq, image in enumerate((RED, BLUE)):
            params = {"max_tokens": 3, "seed": 4, "stop": []}
            body = {
                "sampling_session_id": sampler,
                "seq_id": seq,
                "prompt": prompt_of(image),
                "sampling_params": params,
            }
            asked.append(await client.post("asample", body | {"prompt_logprobs": True, "num_samples": 2}))
        for submitted, image, expected in zip(asked, (RED, BLUE), (red, blue), strict=True):
            answer = await client.result(submitted)
            np.testing.assert_allclose(answer["prompt_logprobs"][1:], expected, rtol=1e-6, atol=1e-6)
            for drawn in answer["sequences"]:
                logprobs = plain(model, image, [*AFTER, *drawn["tokens"]])[1][-3:]
                np.testing.assert_allclose(drawn["logprobs"], logprobs, rtol=1e-5, atol=1e-5)
        stepped = await client.result(await client.post("optim_step", {"model_id": client.model, "adam_params": {}}))
        assert stepped["metrics"]["grad_norm:mean"] > 0


async def test_bad_images_are_the_users_fault(model, tmp_path, monkeypatch) -> None:
    ids, _ = plain(model, RED)
    mark = ids[len(BEFORE)]
    async with client_of(model, tmp_path) as client:
        for seq, (image, expected, line) in enumerate(
            (
                (png(RED), 7, "expected_tokens=7: the image has 2 tokens"),
                (png(RED)[:60], 0, "an image cannot be read"),
                (b"http://127.0.0.1/x.png", 0, "it is no picture"),
                (png(picture(size=(28, 28))), 0, "target_tokens has shape"),
            ),
            1,
        ):
            body = pass_body(client.model, seq, image, ids, expected)
            answer = await client.result(await client.post("forward_backward", body))
            assert answer["category"] == "user", answer
            assert line in answer["error"]
            assert "\n" not in answer["error"]
        body = {"session_id": client.session, "sampling_session_seq_id": 1, "base_model": str(model)}
        sampler = (await client.post("create_sampling_session", body))["sampling_session_id"]
        monkeypatch.setattr(wire, "MAX_FEATURES", 10_000)
        pointer = {"type": "image_asset_pointer", "location": "/etc/hostname", "format": "png"}
        for prompt, line in (
            (prompt_of(RED, expected_tokens=9), "the image has 2 tokens"),
            (prompt_of(RED, expected_tokens="x"), "expected_tokens"),
            (prompt_of(RED, data="/etc/hostname"), "cannot be read"),
            (prompt_of(RED, data=[1]), "cannot be read"),
            (prompt_of(RED, [mark]), "stand for an image"),
            (prompt_of(picture(size=(84, 84))), "send fewer"),
            ({"chunks": [pointer]}, "no address is fetched"),
            ({"chunks": [{"type": "dmel", "dmel": "x"}]}, "audio is not served"),
        ):
            answer = await client.result(
                await client.post("asample", {"sampling_session_id": sampler, "prompt": prompt})
            )
            assert answer["category"] == "user", answer
            assert line in answer["error"]
