"""Finding the processor of a model."""

import json
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.chat.media.processor import Processor

MEDIA_FIELD_NAMES = ("vision", "visual", "image", "video", "patch", "encoder", "_config", "auto_map")
"""Parts of the names of fields that a model of text alone does not have."""


def load_processor(
    model_path: str, tokenizer: Any, *, trust_remote_code: bool = False, kwargs: dict[str, Any] | None = None
) -> Processor:
    """The processor of a model in a folder or under a hub id, with this tokenizer; it refuses images if the model takes
    text alone or its processor cannot be loaded. `kwargs` go into each of its calls."""
    # A border: files of any age, and code that may come with them. Text alone must go on working.
    try:
        kind = _kind(model_path, trust_remote_code)
        return Processor(_loaded(model_path, kind, tokenizer, trust_remote_code) if kind else None, kwargs)
    except Exception as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        return Processor(missing=f"its processor cannot be loaded ({text[0]}); install or fix that")


def takes_images(model_path: str, *, trust_remote_code: bool = False) -> bool:
    """Whether the model in a folder or under a hub id takes images; False where nothing can be read there."""
    try:  # the same border
        return _kind(model_path, trust_remote_code) is not None
    except Exception:
        return False


def _text_alone(model_path: str) -> bool:
    """Whether the configuration in a folder has no field of another medium, nor of custom code."""
    file = Path(model_path) / "config.json"
    return file.is_file() and not any(sign in key for key in json.loads(file.read_text()) for sign in MEDIA_FIELD_NAMES)


def _kind(model_path: str, trust_remote_code: bool) -> str | None:
    """The type of a model that takes images; None of any other."""
    if _text_alone(model_path):  # a server's start does not wait for the import of transformers
        return None
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    kind = AutoConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code).model_type
    return str(kind) if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES else None


@lru_cache(maxsize=1)  # who trains, who samples and who reads the rows ask for the same
def _loaded(model_path: str, kind: str, tokenizer: Any, trust_remote_code: bool) -> Any:
    from transformers import AutoProcessor

    if find_spec("torchvision") is None:
        return _still(model_path, kind, tokenizer)
    processor = AutoProcessor.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    processor.tokenizer = tokenizer
    return processor


def _still(model_path: str, kind: str, tokenizer: Any) -> Any:
    """A processor for images alone: transformers makes none for videos without torchvision."""
    from transformers import AutoImageProcessor
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES, processor_class_from_name

    whole: Any = processor_class_from_name(PROCESSOR_MAPPING_NAMES[kind])

    class Still(whole):
        """A location of which a part may be missing."""

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return type(argument)

        def save_pretrained(self, save_directory: Any, **_: Any) -> None:
            self.image_processor.save_pretrained(save_directory)
            self.tokenizer.save_pretrained(save_directory)

    parts = {"image_processor": AutoImageProcessor.from_pretrained(model_path), "tokenizer": tokenizer}
    settings, _ = whole.get_processor_dict(model_path)
    made = Still.from_args_and_dict([parts.get(name) for name in whole.get_attributes()], settings)
    made.__class__.__name__ = whole.__name__
    return made
