"""Models that read images load whole; a run on text leaves their towers out of memory, and exports have them."""

from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import save_file

from agentrl.config.schema import Model
from agentrl.core.errors import UserError
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.training import load_model, load_processor, load_tokenizer
from agentrl.training.checkpoint.merge import merge
from agentrl.training.model.export import save_pretrained
from agentrl.training.model.packing_probe import pack_where_exact
from tests.models.families import FAMILIES, folder
from tests.training.test_export import assert_equal, saved, tensors
from tests.training.test_model import tokenizer
from tests.training.tiny import CPU

pytestmark = pytest.mark.integration

KINDS = ["qwen3_5", "qwen3_5_moe", "llama4", "gemma3", "gemma4", "qwen2_5_vl"]


@pytest.fixture(scope="module", params=KINDS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(FAMILIES[request.param], tmp_path_factory.mktemp("models") / request.param)


def test_a_model_that_reads_images_is_loaded_whole(base: Path) -> None:
    model = load_model(Model(path=str(base)), device=CPU, seed=0)
    assert type(model.base).__name__.endswith("ForConditionalGeneration")
    assert any(parameter.requires_grad for parameter in model.vision_tower.parameters())
    assert dict(PolicyWeights(model).tensors()).keys() == tensors(base).keys()


def test_without_its_towers_it_keeps_its_names_and_its_exports_have_them(base: Path, tmp_path: Path) -> None:
    whole = load_model(Model(path=str(base)), device=CPU, seed=0)
    model = load_model(Model(path=str(base), text_only=True), device=CPU, seed=0)
    assert model.vision_tower is None
    left_out = whole.shards().keys() - model.shards().keys()
    assert left_out
    assert all("vis" in name or "audio" in name for name in left_out)
    sent = dict(PolicyWeights(model).tensors())
    assert tensors(base).keys() > sent.keys()
    merge(saved(model, tmp_path / "run"), tmp_path / "out")
    merge(saved(model, tmp_path / "whole", weights=True), tmp_path / "again")
    for place in (tmp_path / "out", tmp_path / "again"):
        assert_equal(tensors(place), tensors(base))
        for file in base.glob("*processor_config.json"):
            assert (place / file.name).read_text() == file.read_text()
        read = type(whole.base).from_pretrained(place)
        assert_equal(read.state_dict(), whole.base.state_dict())


@pytest.mark.parametrize("text_only", [False, True])
def test_names_are_those_of_the_files(tmp_path: Path, text_only: bool) -> None:
    """transformers renames the tower's tensors of the models on the hub as it loads them."""
    base = folder(FAMILIES["gemma3"], tmp_path / "base")
    named = {name.replace("vision_tower.", "vision_tower.vision_model."): t for name, t in tensors(base).items()}
    save_file(named, base / "model.safetensors", metadata={"format": "pt"})
    model = load_model(Model(path=str(base), text_only=text_only), device=CPU, seed=0)
    sent = {name for name, _ in PolicyWeights(model).tensors()}
    assert sent == {name for name in named if not (text_only and "vision" in name)}
    save_pretrained(model, tokenizer(), tmp_path / "out")
    assert_equal(tensors(tmp_path / "out"), named)


def test_an_adapter_without_towers_is_merged_into_the_whole_model(tmp_path: Path) -> None:
    base = folder(FAMILIES["qwen3_vl"], tmp_path / "base")
    model = load_model(Model(path=str(base), text_only=True, lora_rank=2), device=CPU, seed=0)
    assert not any("visual" in name for name in model.trainable_shards())
    save_pretrained(model, tokenizer(), tmp_path / "out", merge=True)
    assert_equal(tensors(tmp_path / "out"), tensors(base))


def test_images_are_refused_in_one_line(tmp_path: Path) -> None:
    base = folder(FAMILIES["qwen3_5"], tmp_path)
    image = {"image": Image.new("RGB", (56, 56))}
    model = Model(path=str(base))
    words = load_tokenizer(model)
    assert load_processor(model, words).medium("image", image).ids
    model.text_only = True
    with pytest.raises(UserError, match=r"model\.text_only=true leaves out .*; set it to false, or use rows of text"):
        load_processor(model, words).medium("image", image)


def test_text_alone_packs_where_images_do_not(tmp_path: Path) -> None:
    """Tokens of an image see each other in both directions."""
    base = folder(FAMILIES["gemma3"], tmp_path)
    packs = [pack_where_exact(load_model(Model(path=str(base), text_only=t), device=CPU, seed=0), CPU) for t in (0, 1)]
    assert packs == [False, True]
