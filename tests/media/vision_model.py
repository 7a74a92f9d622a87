"""Tiny random vision-language models of real architectures, as folders, and pictures for them.

Their processors are transformers' own, and work without torchvision (images alone).
"""

import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils import logging

from agentrl.tasks.models.tiny import train_tokenizer

MARKS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = Path("configs/templates/chatml_tools.jinja")
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    "tie_word_embeddings": False,
}
VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 14}
OF_KIND: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2},
    "qwen2_5_vl": {"out_hidden_size": 32, "fullatt_block_indexes": [1], "window_size": 56},
    "qwen3_vl": {"out_hidden_size": 32, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
}


# Sizes that GPU kernels are made for.
WIDE = (
    {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}},
    {"hidden_size": 128, "intermediate_size": 256, "out_hidden_size": 256},
)


def folder(
    place: Path,
    kind: str = "qwen2_5_vl",
    *,
    tokenizer: Any = None,
    seed: int = 0,
    std: float = 0.1,
    size: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
) -> Path:
    """A model with tokenizer and image processor; its logits are far from uniform. `size`: of its two parts."""
    tokenizer = tokenizer or small_tokenizer()
    vision = VISION | OF_KIND[kind] | size[1]
    text = TEXT | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None} | size[0]
    if kind == "qwen3_vl":
        text |= {"head_dim": 16}
    start, end, image, video = tokenizer.convert_tokens_to_ids(MARKS)
    config = CONFIG_MAPPING[kind](
        text_config=text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, std)
    logging.disable_progress_bar()
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=84 * 84).save_pretrained(place)
    return place


def small_tokenizer() -> Any:
    """Bytes and marks: about 270 ids."""
    made = train_tokenizer(["a red picture"], 270, TEMPLATE.read_text())
    made.add_special_tokens({"additional_special_tokens": MARKS})
    return made


def qwen_tokenizer() -> Any:
    """Qwen's own vocabulary."""
    sys.path.insert(0, "tests/chat")
    from tests.chat import realia

    made = realia.tokenizer("qwen")
    made.add_special_tokens({"additional_special_tokens": MARKS})
    return made


def picture(colour: str = "red", size: tuple[int, int] = (56, 28)) -> Image.Image:
    return Image.new("RGB", size, colour)


def load(place: Path) -> Any:
    return AutoTokenizer.from_pretrained(place)
