"""Tiny random models of the families that people train with RL, made from transformers' own configuration classes.

A family is a configuration class, the sizes that make it small, and for models that read images the token that stands
for an image. `folder` writes one as a checkpoint: model, tokenizer with chat template, processor.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.utils import logging

from agentrl.tasks.models.tiny import train_tokenizer

TEMPLATE = Path("configs/templates/chatml_tools.jinja")
MARKS = [
    *("<|vision_start|>", "<|vision_end|>", "<image>", "<video>", "<|image_pad|>", "<|video_pad|>"),
    *("[IMG]", "[IMG_BREAK]", "[IMG_END]", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "TILE_GLOBAL", "TILE", "<|IMG_LINE_BREAK|>"),
    *("<row_1_col_1>", "<|video|>", "<audio>", "<|python_tag|>"),
]
"""Tokens that some processor writes."""
NAMED = {
    "image_token": "<image>",
    "video_token": "<video>",
    "boi_token": "<|vision_start|>",
    "eoi_token": "<|vision_end|>",
    "image_start_token": "<|vision_start|>",
    "image_end_token": "<|vision_end|>",
    "video_start_token": "<|vision_start|>",
    "video_end_token": "<|vision_end|>",
    "start_image_token": "<|vision_start|>",
    "end_image_token": "<|vision_end|>",
    "context_image_token": "<image>",
    "audio_token": "<audio>",
    "boa_token": "<|vision_start|>",
    "eoa_token": "<|vision_end|>",
}
"""Attributes of a tokenizer that processors read."""
WORDS = {
    "start": "<|vision_start|>",
    "boi": "<|vision_start|>",
    "end": "<|vision_end|>",
    "eoi": "<|vision_end|>",
    "image": "<image>",
    "video": "<video>",
}
"""A word in the name of a configuration's field, and the token that it is about."""
SECTION = {"rope_type": "default", "rope_theta": 10000.0}
TEXT: dict[str, Any] = {
    # attention
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 16,
    "num_global_key_value_heads": 2,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "sliding_window": 64,
    "query_pre_attn_scalar": 16,
    "tie_word_embeddings": False,
    # feed-forward layers and experts
    "intermediate_size": 96,
    "intermediate_size_mlp": 96,
    "ffn_hidden_size": 96,
    "moe_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "shared_expert_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_topk": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "n_shared_experts": 1,
    # latent and sparse attention
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "index_topk": 16,
    "index_n_heads": 32,  # with few, many scores are 0, and which of them are the largest is chance
    "index_head_dim": 16,
    # recurrent mixers
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "mamba_d_state": 8,
    "mamba_d_head": 16,
    "mamba_n_heads": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "state_size": 8,
    "n_groups": 1,
    "chunk_size": 16,
    "block_size": 16,
    # others
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 0,
    "pad_token_id": 0,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "embed_dim": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "depth": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_heads": 2,
    "head_dim": 16,
    "image_size": 56,
    "patch_size": 14,
    "mlp_ratio": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [1],
    "window_size": 56,
}


SMALL_IMAGES = {"min_pixels": 784, "max_pixels": 7056}


@dataclass(frozen=True)
class Family:
    """One family. `kind`: transformers' model_type; `text`, `vision`, `whole`: fields of the configurations.

    `image`, `processor`: fields of the image processor and the processor.
    """

    name: str
    group: str
    kind: str
    text: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)
    image: dict[str, Any] = field(default_factory=dict)
    processor: dict[str, Any] = field(default_factory=dict)
    placeholder: str = "<image>"
    """The text that the chat template writes for an image."""
    std: float = 0.1
    """Of the weights: the logits shall be far from uniform."""

    @property
    def reads_images(self) -> bool:
        return "vision_config" in CONFIG_MAPPING[self.kind].sub_configs

    @property
    def head(self) -> Any:
        """transformers' class that loads it whole."""
        whole = self.kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        return AutoModelForImageTextToText if whole else AutoModelForCausalLM


FAMILIES: dict[str, Family] = {}


def _add(group: str, *kinds: str, name: str = "", **fields: Any) -> None:
    parts = {
        part: fields.pop(part) for part in ("vision", "whole", "image", "processor", "placeholder") if part in fields
    }
    for kind in kinds:
        FAMILIES[name or kind] = Family(name or kind, group, kind, text=fields, **parts)


def configuration(family: Family, tokenizer: Any) -> Any:
    """The family's configuration, made small."""
    own = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    own["vocab_size_per_layer_input"] = len(tokenizer)
    own |= dict.fromkeys(("eos_token_id", "bos_token_id"), tokenizer.eos_token_id)
    kind = CONFIG_MAPPING[family.kind]
    if "text_config" not in kind.sub_configs:
        return kind(**(_known(kind, TEXT | own) | family.text))
    parts = {"text_config": (TEXT | own, family.text), "vision_config": (VISION, family.vision)}
    fields = {"tie_word_embeddings": False} | own | _marks(kind, tokenizer)
    given = _known(kind, fields) | {name: _id(value, tokenizer) for name, value in family.whole.items()}
    for name, (small, extra) in parts.items():
        part = CONFIG_MAPPING[extra["model_type"]] if "model_type" in extra else type(getattr(kind(), name))
        given[name] = {"model_type": part.model_type} | _known(part, small) | extra
    return kind(**given)


def _id(value: Any, tokenizer: Any) -> Any:
    return tokenizer.convert_tokens_to_ids(value) if isinstance(value, str) and value in MARKS else value


def _marks(kind: Any, tokenizer: Any) -> dict[str, int]:
    """The ids of the tokens that a configuration names, by the words in their fields' names."""
    names = [f.name for f in dataclasses.fields(kind) if f.name.endswith(("_token_id", "_token_index"))]
    found = {name: next((mark for word, mark in WORDS.items() if word in name), None) for name in names}
    return {name: tokenizer.convert_tokens_to_ids(mark) for name, mark in found.items() if mark}


def _known(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The values of which a configuration class has fields."""
    names = {f.name for f in dataclasses.fields(kind)} | set(kind.attribute_map)
    values = {n: v for n, v in values.items() if n != "sliding_window" or getattr(kind, n, None)}
    latent = {"num_key_value_heads": values.get("num_attention_heads")} if "kv_lora_rank" in names else {}
    return {name: value for name, value in (values | latent).items() if name in names}


def model_of(family: Family, tokenizer: Any, *, seed: int = 0) -> Any:
    """A random model; learned buffers have values that no new model gets."""
    torch.manual_seed(seed)
    model = family.head.from_config(configuration(family, tokenizer))
    saved = model.state_dict().keys()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.5 if "conv1d" in name else family.std)
        for name, buffer in model.named_buffers():
            if name in saved and name.endswith(("bias", "scalar")):  # not tables, which belong together
                buffer.uniform_(0.3, 0.8)
    return model.eval()


def tokenizer(placeholder: str = "") -> Any:
    """Bytes, marks and a chat template, in which `placeholder` stands for an image."""
    template = TEMPLATE.read_text()
    qwen = "'<|vision_start|><|' + part.type + '_pad|><|vision_end|>'"
    assert qwen in template
    made = train_tokenizer(["a red picture"], 270, template.replace(qwen, repr(placeholder)))
    made.add_special_tokens({"additional_special_tokens": MARKS, "bos_token": "<|endoftext|>"})
    made._set_model_specific_special_tokens(special_tokens=NAMED)
    return made


def folder(family: Family, place: Path, *, seed: int = 0) -> Path:
    """Write the family's model with tokenizer and processor."""
    logging.disable_progress_bar()
    words = tokenizer(family.placeholder)
    model_of(family, words, seed=seed).save_pretrained(place)
    words.save_pretrained(place)
    if family.reads_images:
        _write_processor(family, place)
    return place


def _write_processor(family: Family, place: Path) -> None:
    """Image processor and processor, as transformers' own image classes without torchvision write them."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(family.kind) or IMAGE_PROCESSOR_MAPPING_NAMES["qwen2_vl"]
    words = {"image_processor_type": names["torchvision"]} | SMALL_IMAGES | family.image
    (place / "preprocessor_config.json").write_text(json.dumps(words))
    whole = {"processor_class": PROCESSOR_MAPPING_NAMES[family.kind]} | family.processor
    (place / "processor_config.json").write_text(json.dumps(whole))


SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
MROPE = {"rope_parameters": SECTION | {"mrope_section": [2, 3, 3]}}

_add("dense", "llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "gemma", "phi3", "olmo2", "smollm3")
_add("dense", "cohere", "seed_oss", "hunyuan_v1_dense", "ernie4_5", "glm", "glm4", "granite", "apertus", "starcoder2")
_add("dense", "nemotron", "arcee", "stablelm", "youtu", "helium", "internlm3", "minicpm3", "jais2", "nanochat", "cwm")
_add("dense", "gemma2", "gemma3_text", "gemma4_text", "olmo3", "cohere2", "exaone4", **SLIDING)
_add("dense", "gemma3n_text", **SLIDING)
_add("experts", "qwen2_moe", "qwen3_moe", "mixtral", "phimoe", "olmoe", "granitemoe", "dots1", "hunyuan_v1_moe")
_add("experts", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa")
_add("experts", "minimax_m2", "ernie4_5_moe", "hy_v3", "hy_v4", "afmoe", "solar_open", "flex_olmo")
_add("experts", "longcat_flash", num_layers=1, zero_expert_num=2, head_dim=8)
_add("experts", "gpt_oss", "mimo_v2_flash", "laguna", "cohere2_moe", "exaone_moe", **SLIDING)
_add("experts", "granitemoeshared", "mistral4")
_add("experts", "deepseek_v4", layer_types=["compressed_sparse_attention", "heavily_compressed_attention"])
_add("experts", "llama4_text")
_add("experts", "gemma4_text", name="gemma4_moe", enable_moe_block=True, num_experts=4, top_k_experts=2, **SLIDING)
_add("hybrid", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "kimi_linear", "minimax", "olmo_hybrid", **LINEAR)
_add("hybrid", "bailing_hybrid", layer_group_size=2)
_add("hybrid", "nemotron_h")
_add("hybrid", "granitemoehybrid", **LINEAR)
_add("hybrid", "jamba", attn_layer_period=2, attn_layer_offset=1)
_add("hybrid", "bamba", attn_layer_indices=[1])
_add("hybrid", "falcon_h1", mamba_d_ssm=128)
_add("hybrid", "zamba2", layers_block_type=["mamba", "hybrid"], n_mamba_heads=8)
_add("hybrid", "zaya", num_experts_per_tok=1)
_add("hybrid", "granitemoehybrid", name="granite4_dense", num_local_experts=0, **LINEAR)
_add("hybrid", "lfm2", "lfm2_moe", "lfm3", layer_types=["conv", "full_attention"])
_add("hybrid", "mamba2", num_heads=8, head_dim=16)
_add("hybrid", "falcon_mamba")
QWEN = {"placeholder": "<|vision_start|><image><|vision_end|>"}
SQUARE = {"size": {"height": 56, "width": 56}}
CLIP = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
STRATEGY = {"patch_size": 14, "vision_feature_select_strategy": "default"}
_add("vision", "qwen2_vl", vision={"hidden_size": 64}, **(MROPE | QWEN))
_add("vision", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", **(MROPE | QWEN))
_add("vision", "qwen3_5", "qwen3_5_moe", **(MROPE | LINEAR | QWEN))
_add(
    "vision",
    "glm4v",
    "glm4v_moe",
    "glm46v",
    rope_parameters=SECTION | {"mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5},
    **QWEN,
)
_add(
    "vision",
    "ernie4_5_vl_moe",
    moe_intermediate_size=[32, 16],
    rope_parameters=SECTION | {"mrope_section": [3, 3, 2]},
    **QWEN,
)
BOI = {"processor": {"image_seq_length": 4}, "image": SQUARE, "placeholder": "<|vision_start|>"}
_add("vision", "gemma3", whole={"mm_tokens_per_image": 4}, **(SLIDING | BOI))
GEMMA4_VISION = {"model_type": "gemma4_vision", "pooling_kernel_size": 2}
_add(
    "vision",
    "gemma4",
    vision=GEMMA4_VISION,
    image={"patch_size": 14, "max_soft_tokens": 70, "pooling_kernel_size": 2},
    **SLIDING,
)
_add("vision", "llama4", vision={"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32})
PIXTRAL = {"size": {"longest_edge": 56}, "patch_size": 14}
_add("vision", "mistral3", image=PIXTRAL, processor={"patch_size": 14, "spatial_merge_size": 2}, placeholder="[IMG]")
_add("vision", "internvl", image=SQUARE | {"crop_to_patches": False}, processor={"image_seq_length": 4})
IDEFICS = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 56}, "do_image_splitting": False}
_add("vision", "smolvlm", "idefics3", image=IDEFICS, processor={"image_seq_len": 4})
_add("vision", "llava", image=CLIP, processor=STRATEGY | {"num_additional_image_tokens": 1})
_add(
    "vision",
    "llava_next",
    whole={"image_grid_pinpoints": [[56, 56]]},
    image=CLIP | {"image_grid_pinpoints": [[56, 56]]},
    processor=STRATEGY | {"num_additional_image_tokens": 1},
)
_add(
    "vision",
    "llava_onevision",
    whole={"image_grid_pinpoints": [[56, 56]]},
    image=SQUARE | {"image_grid_pinpoints": [[56, 56]]},
    processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
)
_add(
    "vision",
    "aya_vision",
    whole={"image_token_index": "<|IMG_PATCH|>"},
    image=SQUARE | {"crop_to_patches": False},
    processor={"patch_size": 14, "img_size": 56, "downsample_factor": 2},
)
_add("vision", "lfm2_vl", "cohere2_vision", "kimi_k25")
