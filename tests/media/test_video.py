"""Videos, as lists of frames: their processors need torchvision, so these run where it does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.chat import Chat
from agentrl.config.schema import Model
from agentrl.engines.engine import Sampling
from agentrl.engines.hf import HFEngine
from agentrl.training import load_model, load_processor, pack_ledgers
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.medium import media_of
from tests.media import vision_model

pytest.importorskip("torchvision", reason="its wheels on PyPI are for CUDA", exc_type=(ImportError, RuntimeError))


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
async def test_a_video_among_images(tmp_path: Path, kind: str) -> None:
    place = vision_model.folder(tmp_path / "model", kind)
    tokenizer = vision_model.load(place)
    chat = Chat(tokenizer, processor=load_processor(Model(path=str(place)), tokenizer))
    module = load_model(Model(path=str(place)), device=torch.device("cpu"), seed=0).module
    film: Any = {
        "video": [vision_model.picture(colour, (56, 56)) for colour in ("red", "blue", "green", "red")],
        "fps": 2,
    }
    still = {"type": "image", "image": vision_model.picture("blue", (84, 28))}
    parts = [still, {"type": "video", "video": film}, {"type": "text", "text": "what happens?"}]
    messages = chat.see([{"role": "user", "content": parts}])
    ids, media = chat.prompt(messages), media_of(messages)
    assert [medium.kind for medium in media] == ["image", "video"]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    about = [{"fps": 2, "total_num_frames": 4, "frames_indices": [0, 1, 2, 3]}]
    whole = chat.processor.processor(  # type: ignore[union-attr]
        text=[text],
        images=[media[0].source],
        videos=[media[1].source],
        video_metadata=about,
        do_sample_frames=False,
        return_tensors="pt",
    )
    assert ids == whole["input_ids"][0].tolist()
    engine = HFEngine(module, max_num_seqs=2, max_model_len=512)
    await engine.start()
    try:
        got = await engine.generate(ids, Sampling(6, seed=1), key="a", media=media)
    finally:
        await engine.close()
    ledger = Ledger()
    ledger.append_prompt(ids, media)
    ledger.append_model(got.token_ids, got.logprobs, turn=0, version=0)
    with torch.no_grad():
        scored, _ = TokenLogprobs(module)(pack_ledgers([ledger]))
    assert float((scored - torch.tensor([0.0] * len(ids) + got.logprobs)).abs().max()) < 1e-5
