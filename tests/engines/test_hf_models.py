"""Log-probs agree with the module's own on every supported model, and the rest falls back, said once."""

import asyncio
import logging
from typing import Any

import pytest
import torch

from agentrl.core.errors import UserError
from agentrl.engines.engine import Generation, Sampling
from agentrl.engines.hf import HFEngine
from tests.engines import tiny

pytestmark = pytest.mark.integration


async def sample(model: Any, count: int = 6, **kwargs: Any) -> list[tuple[list[int], Generation]]:
    """Prompts of mixed lengths, continued over two turns; tuples of prompt and second generation."""
    engine = HFEngine(model, max_num_seqs=4, max_model_len=700, max_num_batched_tokens=64, **kwargs)
    await engine.start()
    pairs = []

    async def talk(i: int) -> None:
        ids = torch.randint(1, tiny.VOCABULARY, (3 + 60 * i,), generator=torch.Generator().manual_seed(i)).tolist()
        first = await engine.generate(ids, Sampling(9 + i, seed=i), key=str(i))
        ids = ids + first.token_ids + [4, 5, 6]
        pairs.append((ids, await engine.generate(ids, Sampling(12, seed=i), key=str(i))))

    await asyncio.gather(*(talk(i) for i in range(count)))
    await engine.close()
    return pairs


def gap(model: Any, pairs: list[tuple[list[int], Generation]]) -> float:
    """Largest difference of a log-prob from the module's own."""
    worst = 0.0
    for ids, got in pairs:
        rows = tiny.logits(model, ids + got.token_ids)[len(ids) - 1 : -1].log_softmax(-1)
        expected = rows[torch.arange(len(got.token_ids)), torch.tensor(got.token_ids)]
        worst = max(worst, (expected - torch.tensor(got.logprobs)).abs().max().item())
    return worst


def two_adapters() -> Any:
    from peft import LoraConfig

    model = tiny.lora()
    model.add_adapter("second", LoraConfig(r=2, lora_alpha=1, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "second" in name:
                parameter.normal_(std=0.3)
    model.base_model.set_adapter(["default", "second"])
    return model


def merged() -> Any:
    model = tiny.lora()
    model.merge_adapter()
    return model


def disabled() -> Any:
    model = tiny.lora()
    model.base_model.disable_adapter_layers()
    return model


SUPPORTED = {
    "llama": tiny.llama,
    "untied": lambda: tiny.llama(tie_word_embeddings=False),
    "biases": lambda: tiny.llama(attention_bias=True, mlp_bias=True),
    "llama3 rope": tiny.llama3_rope,
    "one head group": lambda: tiny.llama(num_key_value_heads=4),
    "odd vocabulary": lambda: tiny.llama(vocab_size=97),
    "mistral": tiny.mistral,
    "wide window": lambda: tiny.mistral(sliding_window=4096),
    "qwen2": tiny.qwen2,
    "qwen3": tiny.qwen3,
    "lora": tiny.lora,
    "lora on qwen2": lambda: tiny.lora(tiny.qwen2(), target_modules=["q_proj", "v_proj"]),
    "lora with a trained head": lambda: tiny.lora(tiny.llama(tie_word_embeddings=False), modules_to_save=["lm_head"]),
    "rank-stabilised lora": lambda: tiny.lora(use_rslora=True),
    "two adapters": two_adapters,
    "merged adapter": merged,
    "disabled adapter": disabled,
}


@pytest.mark.parametrize("name", SUPPORTED)
async def test_logprobs_are_the_modules_own(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model = SUPPORTED[name]()
    assert gap(model, await sample(model)) < 2e-5
    assert not caplog.records, "no fallback here"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (tiny.gpt2, "GPT2LMHeadModel is none of"),
        (lambda: tiny.mistral(sliding_window=50), "sliding window of 50"),
        (lambda: tiny.lora(use_dora=True), "variant"),
        (lambda: tiny.llama(hidden_act="gelu"), "activation gelu"),
        (
            lambda: tiny.llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "rope of type dynamic",
        ),
    ],
    ids=["gpt2", "window", "dora", "gelu", "dynamic rope"],
)
async def test_the_rest_falls_back_and_says_so(make: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "agentrl")
    model = make()
    assert gap(model, await sample(model, 3)) < 1e-4
    ours = [record for record in caplog.records if record.name.startswith("agentrl")]
    assert len(ours) == 1
    assert reason in ours[0].message
    assert "transformers' own generation" in ours[0].message


async def test_the_fallback_ignores_the_models_generation_defaults() -> None:
    model = tiny.gpt2()
    own = model.generation_config
    own.repetition_penalty = 3.0
    own.suppress_tokens = [1, 2, 3]
    own.eos_token_id = list(range(32))
    pairs = await sample(model.train(), 3)
    assert model.training
    assert model.generation_config is own
    assert gap(model.eval(), pairs) < 1e-4


async def test_both_ways_draw_the_same_tokens() -> None:
    model = tiny.llama()
    slots, fallback = await sample(model), await sample(model, fallback=True)
    by_length = {len(ids): got for ids, got in fallback}
    for ids, got in slots:
        assert by_length[len(ids)].token_ids == got.token_ids


async def test_bfloat16_stays_within_its_noise() -> None:
    """The engine's distance from float32 is that of the module's own bfloat16 forward pass."""
    exact = tiny.llama(hidden_size=64, initializer_range=0.1)
    rounded = tiny.llama(hidden_size=64, initializer_range=0.1).bfloat16()
    pairs = await sample(rounded)
    ours, floor = [], []
    for ids, got in pairs:
        chosen = (torch.arange(len(got.token_ids)), torch.tensor(got.token_ids))
        truth, module = (
            tiny.logits(model, ids + got.token_ids)[len(ids) - 1 : -1].log_softmax(-1)[chosen]
            for model in (exact, rounded)
        )
        ours.append((truth - torch.tensor(got.logprobs)).abs())
        floor.append((truth - module).abs())
    assert torch.cat(ours).mean() < 1.5 * torch.cat(floor).mean() + 1e-3


async def test_a_bfloat16_base_with_float32_adapters() -> None:
    """peft's usual mix: the adapter's product is computed in float32."""
    model = tiny.lora(tiny.llama(initializer_range=0.1).bfloat16())
    assert {p.dtype for name, p in model.named_parameters() if "lora_" in name} == {torch.float32}
    assert gap(model, await sample(model)) < 0.15


SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 4, "head_dim": 16, "vocab_size": tiny.VOCABULARY}
INDEXED = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8, "kv_lora_rank": 16, "q_lora_rank": 24}
INDEXED |= {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 2}
RECURRENT = {"attention_window_size": 4096, "lru_width": 64, "block_types": ["recurrent", "attention"]}


def model_of(kind: str, fields: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**(SMALL | fields)))
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and "conv" not in name:
            parameter.data.normal_(0, 0.15)
    return model.eval()


@pytest.mark.parametrize(("kind", "fields"), [("glm_moe_dsa", INDEXED), ("deepseek_v32", INDEXED)])
async def test_a_model_whose_tokens_change_with_the_next_ones_is_refused(kind: str, fields: Any) -> None:
    """With two heads many scores of the index are 0, and which tokens it takes is chance."""
    engine = HFEngine(model_of(kind, fields), max_num_seqs=4, max_model_len=200)
    with pytest.raises(UserError, match=rf"a {kind} model's own forward pass .* is off by .* nats .* sglang or vllm"):
        await engine.start()


async def test_a_model_that_a_cache_changes_computes_whole_sequences(caplog: pytest.LogCaptureFixture) -> None:
    layers = ["linear_attention", "full_attention"]
    model = model_of("minimax", {"layer_types": layers, "block_size": 16, "sliding_window": 16, "num_local_experts": 4})
    pairs = await sample(model, 4)
    assert gap(model, pairs) < 1e-4
    assert "now each token computes its whole sequence, which is slow" in caplog.text


async def test_a_model_that_padding_changes_runs_one_request_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of("recurrent_gemma", RECURRENT)
    pairs = await sample(model, 4)
    assert gap(model, pairs) < 1e-4
    assert "now 1 at a time" in caplog.text
