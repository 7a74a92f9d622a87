"""Tokens and features through the model: packed as one by one, the engine as the trainer, and what is refused."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from agentrl.chat import Chat
from agentrl.config.schema import Actor, Model
from agentrl.core.errors import UserError
from agentrl.engines.engine import Sampling
from agentrl.engines.hf import HFEngine
from agentrl.training import load_model, load_processor, pack_ledgers
from agentrl.training.batches.media import Media
from agentrl.training.model.attention.choosing import is_packed
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.model.loading import freeze_vision_tower
from agentrl.training.model.packing_probe import pack_where_exact
from agentrl.training.update.actor import PolicyActor
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.medium import media_of
from tests.media import vision_model
from tests.training.tiny import smoothed, tiny

CPU = torch.device("cpu")
KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model.folder(tmp_path_factory.mktemp(request.param), request.param)


def chat_of(place: Path) -> Chat:
    tokenizer = vision_model.load(place)
    return Chat(tokenizer, processor=load_processor(Model(path=str(place)), tokenizer))


def part(colour: str, size: tuple[int, int]) -> dict:
    return {"type": "image", "image": vision_model.picture(colour, size)}


def ledgers_of(chat: Chat) -> list[Ledger]:
    """Conversations with no picture, one, two of different sizes, and one that comes in the middle."""
    text = {"type": "text", "text": "what is it?"}
    prompts = [
        "hello",
        [part("red", (56, 56)), text],
        [part("blue", (84, 28)), text, part("green", (28, 56))],
        [text, part("blue", (28, 28))],
    ]
    said = chat.template.encode("blue or not blue")
    made = []
    for i, content in enumerate(prompts):
        messages = chat.see([{"role": "user", "content": content}])
        ledger = Ledger()
        ledger.append_prompt(chat.prompt(messages), media_of(messages))
        ledger.append_model(said[: i + 2], [-1.0] * (i + 2), turn=0, version=0)
        if i == 3:
            tool = chat.see([{"role": "tool", "content": [part("red", (56, 28)), text]}])
            ledger.media.extend(media_of(tool))
            for source, ids in chat.observation(tool, closed=False):
                ledger.append_observation(ids, source, turn=0)
            ledger.append_model(said[:4], [-1.0] * 4, turn=1, version=0)
        ledger.check()
        made.append(ledger)
    return made


def test_packed_is_one_by_one_is_transformers_own_forward(place: Path) -> None:
    chat = chat_of(place)
    module = load_model(Model(path=str(place)), device=CPU, seed=0).module
    assert pack_where_exact(ModelHandle(module), CPU)
    batch = pack_ledgers(ledgers_of(chat))
    score = TokenLogprobs(module)
    with torch.no_grad():
        packed, entropy = score(batch, every_token=True)
        assert is_packed(module)
        module.set_attn_implementation("sdpa")
        assert not is_packed(module)
        alone, _ = score(batch, every_token=True)
    assert torch.allclose(packed, alone, atol=2e-5)
    assert float(entropy.max()) > 1
    for i, ledger in enumerate(ledgers_of(chat)):
        rows = batch.tokens_of([i])
        expected = reference(module, ledger)
        assert torch.allclose(packed[rows][1:], expected, atol=2e-5)


def reference(module, ledger: Ledger) -> torch.Tensor:
    """transformers by itself: one padded row, positions and all made by the model."""
    ids = torch.tensor([ledger.ids])
    given = {}
    if ledger.media:
        for name in ("pixel_values", "image_grid_thw"):
            given[name] = torch.cat([medium.features[name] for medium in ledger.media])
        given["mm_token_type_ids"] = (ids == module.config.image_token_id).int()
    with torch.no_grad():
        logits = module(input_ids=ids, attention_mask=torch.ones_like(ids), **given).logits[0]
    return logits.log_softmax(-1)[:-1].gather(-1, ids[0, 1:, None])[:, 0]


def test_pictures_matter_and_stay_with_their_sequences(place: Path) -> None:
    """Selecting, in any order, takes each sequence's own pictures along."""
    chat = chat_of(place)
    module = load_model(Model(path=str(place)), device=CPU, seed=0).module
    batch = pack_ledgers(ledgers_of(chat))
    score = TokenLogprobs(module)
    with torch.no_grad():
        whole, _ = score(batch)
        for rows in ([2, 0], [3], [0], [1, 2, 3]):
            some, _ = score(batch.select(rows))
            assert torch.allclose(some, whole[batch.tokens_of(rows)], atol=2e-5)
        assert batch.media is not None
        swapped = batch.select([1])
        swapped.media = Media.of([media_of(chat.see([{"role": "user", "content": [part("green", (56, 56))]}]))])
        other, _ = score(swapped)
    assert not torch.allclose(other, whole[batch.tokens_of([1])], atol=1e-3)


async def test_the_engine_draws_with_the_log_probs_of_the_trainer(place: Path) -> None:
    chat = chat_of(place)
    module = load_model(Model(path=str(place)), device=CPU, seed=0).module
    engine = HFEngine(module, max_num_seqs=8, max_model_len=256)
    await engine.start()
    ledgers = []
    try:
        prompts = [(ledger.ids, ledger.media) for ledger in ledgers_of(chat)]
        got = await asyncio.gather(
            *(
                engine.generate(ids, Sampling(6, seed=i), key=str(i), media=media)
                for i, (ids, media) in enumerate(prompts)
            )
        )
    finally:
        await engine.close()
    for (ids, media), generation in zip(prompts, got, strict=True):
        ledger = Ledger()
        ledger.append_prompt(ids, media)
        ledger.append_model(generation.token_ids, generation.logprobs, turn=0, version=0)
        ledgers.append(ledger)
    batch = pack_ledgers(ledgers)
    with torch.no_grad():
        scored, _ = TokenLogprobs(module)(batch)
    assert float((scored - batch.rollout_logprobs).abs().max()) < 1e-5


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_an_update_reaches_the_eyes_and_does_not_depend_on_the_cut(place: Path, lora_rank: int) -> None:
    chat = chat_of(place)
    after = []
    for tokens in (None, 40):
        module = load_model(Model(path=str(place), lora_rank=lora_rank), device=CPU, seed=0).module
        actor = Actor(ppo_micro_batch_size_per_gpu=None, use_dynamic_bsz=tokens is not None)
        actor.ppo_max_token_len_per_gpu = tokens or 4096
        actor.optim.lr = 1e-2
        trainable = smoothed(PolicyActor(module, actor=actor, temperature=1.0, device=CPU, total_steps=1))
        batch = pack_ledgers(ledgers_of(chat))
        batch.advantages = batch.mask.float()
        before = {n: p.detach().clone() for n, p in module.named_parameters()}
        trainable.update(batch)
        moved = {n: float((p.detach() - before[n]).abs().max()) for n, p in module.named_parameters()}
        assert any("visual" in n and change > 0 for n, change in moved.items())
        after.append(torch.cat([(p.detach() - before[n]).flatten() for n, p in module.named_parameters()]))
    assert float(after[0].abs().max()) > 1e-3
    assert torch.allclose(after[0], after[1], atol=1e-5)


def test_sources_and_masks(place: Path) -> None:
    chat = chat_of(place)
    ledger = ledgers_of(chat)[3]
    pad = chat.template.token_id("<|image_pad|>")
    at = [i for i, token in enumerate(ledger.ids) if token == pad]
    assert [ledger.sources[i] for i in at] == [Source.PROMPT] + [Source.TOOL] * 2
    assert not any(ledger.mask[i] for i in at)
    assert len(at) == sum(len(medium.ids) for medium in ledger.media)


def test_eyes_may_stay_as_they_are(place: Path) -> None:
    chat = chat_of(place)
    module = load_model(Model(path=str(place)), device=CPU, seed=0).module
    freeze_vision_tower(ModelHandle(module))
    trainable = PolicyActor(module, actor=Actor(), temperature=1.0, device=CPU, total_steps=1)
    batch = pack_ledgers(ledgers_of(chat))
    batch.advantages = batch.mask.float()
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    trainable.update(batch)
    moved = {n for n, p in module.named_parameters() if not p.detach().equal(before[n])}
    assert moved
    assert not any("visual" in n for n in moved)


def test_a_model_of_text_has_no_eyes() -> None:
    with pytest.raises(UserError, match="LlamaForCausalLM has no vision tower"):
        freeze_vision_tower(ModelHandle(tiny()))


def test_rows_with_images_are_refused_where_the_tower_is_not_loaded(tmp_path: Path) -> None:
    config = CONFIG_MAPPING["qwen3_5"](vision_config={}, text_config={}, image_token_id=5)
    config.save_pretrained(tmp_path)
    tokenizer = vision_model.small_tokenizer()
    Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=84 * 84).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    chat = Chat(tokenizer, processor=load_processor(Model(path=str(tmp_path), text_only=True), tokenizer))
    with pytest.raises(UserError, match="cannot be shown an image: model.text_only=true leaves out what reads it"):
        chat.see([{"role": "user", "content": [part("red", (56, 56))]}])
