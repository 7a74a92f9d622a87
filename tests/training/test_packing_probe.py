"""Whether a loaded model packs sequences is measured; each verdict beside transformers' own forward of one sequence."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

from agentrl.config.schema import Model
from agentrl.config.schema.fsdp import FsdpConfig
from agentrl.core.errors import UserError
from agentrl.training import load_model
from agentrl.training.model.attention.choosing import is_packed
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.model.packing_probe import WINDOW, pack_where_exact, short_windows
from agentrl.training.parallel.ranks import ALONE
from agentrl.training.parallel.sharding import load_on_ranks
from agentrl.training.parallel.ulysses import check_heads
from tests.training.tiny import CPU, SIZES, random_batch, tiny

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
LONGROPE = {
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 32,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "partial_rotary_factor": 1.0,
    },
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA = {"mamba_d_state": 8, "mamba_n_groups": 1, "mamba_n_heads": 8, "mamba_d_head": 8}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4096}
PACKABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "window": ("mistral", {"sliding_window": 6}),
    "window beyond every sequence": ("mistral", {"sliding_window": 4096}),
    "some layers slide": ("gemma3_text", SLIDING | {"query_pre_attn_scalar": 16}),
    "experts": ("qwen3_moe", EXPERTS | {"decoder_sparse_step": 1}),
    "fixed rope": ("qwen3", {"rope_parameters": YARN}),
    "positions from a table": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "no bounds for its layers": ("nemotron", {}),
    "short convolutions": ("lfm2", {"layer_types": ["conv", "full_attention"], "block_dim": 64, "conv_dim": 64}),
    "gated delta rule": ("qwen3_next", EXPERTS | LINEAR | {"layer_types": ["linear_attention", "full_attention"]}),
    "lightning attention": ("minimax", EXPERTS | {"layer_types": ["linear_attention", "full_attention"]}),
    "convolutions within attention": ("zaya", EXPERTS | {"num_experts_per_tok": 1}),
    "attention and mamba side by side": ("falcon_h1", MAMBA | {"mamba_d_ssm": 64}),
    "softcap": ("gemma2", {"sliding_window": 4096}),
    "sinks": ("gpt_oss", EXPERTS | SLIDING),
    "no attention": ("mamba2", {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "expand": 1}),
}
ALONE_ONLY: dict[str, tuple[str, dict[str, Any]]] = {
    "longrope": ("phi3", LONGROPE),
    "dynamic ntk": ("llama", {"max_position_embeddings": 32, "rope_parameters": DYNAMIC}),
    "window of the mask": ("phimoe", EXPERTS | {"sliding_window": 4096}),
    "chunks": ("llama4_text", EXPERTS | {"attention_chunk_size": 8192, "intermediate_size_mlp": 96}),
}


def model_of(kind: str, fields: dict[str, Any]) -> Any:
    config = CONFIG_MAPPING[kind](**(SIZES | fields))
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(config)
    for name, parameter in module.named_parameters():
        if parameter.ndim >= 2:
            parameter.data.normal_(0, 0.5 if "conv" in name else 0.15)
    return module.eval()


def apart(module: Any) -> float:
    """Largest difference of a log-prob of a batch from transformers' own, one sequence a call."""
    batch = random_batch([5, 30, 12, 50])
    with torch.no_grad():
        found = TokenLogprobs(module)(batch, every_token=True)[0].split(batch.lengths)
        own = [module(input_ids=ids[None]).logits[0].log_softmax(-1) for ids in batch.ids.split(batch.lengths)]
    pairs = zip(found, own, batch.ids.split(batch.lengths), strict=True)
    return max(float((f[1:] - o[:-1].gather(-1, i[1:, None])[:, 0]).abs().max()) for f, o, i in pairs)


@pytest.mark.parametrize("name", [*PACKABLE, *ALONE_ONLY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_model_packs_where_a_packed_row_is_its_sequences_alone(name, dtype, caplog):
    module = model_of(*(PACKABLE | ALONE_ONLY)[name]).to(dtype)
    own = module.config._attn_implementation
    packs = pack_where_exact(ModelHandle(module), CPU)
    assert packs is is_packed(module) is (name in PACKABLE)
    said = [record.getMessage() for record in caplog.records if "one sequence a pass" in record.getMessage()]
    assert len(said) == (0 if packs else 1)
    assert packs or module.config._attn_implementation == own
    if dtype == torch.float32:
        assert apart(module) < 2e-5


@pytest.mark.parametrize("kind", ["gemma3", "gemma4"])
@pytest.mark.parametrize("vision", [True, False])
def test_attention_in_both_directions_within_an_image_is_found(kind, vision):
    fields = SIZES | SLIDING | {"query_pre_attn_scalar": 16} if kind == "gemma3" else SIZES | SLIDING
    if kind == "gemma4":
        fields |= {"use_bidirectional_attention": "vision" if vision else None, "global_head_dim": 16}
        fields |= {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "num_global_key_value_heads": 1}
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](text_config=fields, vision_config=small, image_token_id=5)
    module = AutoModelForImageTextToText.from_config(config).eval()
    assert pack_where_exact(ModelHandle(module), CPU) is (kind == "gemma4" and not vision)


def test_windows_are_as_before_after_the_probe():
    module = tiny("gemma3_text", packed=False, **(SLIDING | {"query_pre_attn_scalar": 16}))
    layer = module.model.layers[0].self_attn
    with short_windows(module, WINDOW):
        assert module.config.sliding_window == layer.sliding_window == WINDOW
    assert module.config.sliding_window == layer.sliding_window == 4096


def test_code_of_its_own_that_fails_on_a_packed_row_is_not_packed(caplog):
    module = tiny(packed=False)

    def forward(*args, cu_seq_lens_q=None, **kwargs):
        assert cu_seq_lens_q is None, "no packed rows here"
        return original(*args, **kwargs)

    original, module.model.forward = module.model.forward, forward
    assert not pack_where_exact(ModelHandle(module), CPU)
    assert "no packed rows here" in caplog.text
    assert apart(module) < 2e-5


def test_one_answer_for_training_and_for_sequence_parallel_ranks(tmp_path):
    """What loads a model for training asks the probe; a model that does not pack cannot be split among ranks."""
    for name, fields in (("packs", {}), ("alone", LONGROPE)):
        model_of("phi3", fields).save_pretrained(tmp_path / name)
    load = [load_of(tmp_path / name) for name in ("packs", "alone")]
    assert [model.packs for model in load] == [True, False]
    with pytest.raises(UserError, match="cannot be packed"):
        check_heads(load[1].config, load[1].packs, 2)


def load_of(folder: Path) -> Any:
    return load_on_ranks(
        lambda device: load_model(Model(path=str(folder)), device=device, seed=0), ALONE, FsdpConfig(), device=CPU
    )
