"""A model is loaded by slices: every part of a lazy tensor equals that of the tensor, and ranks read their shards."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from agentrl.config.schema import Model
from agentrl.config.schema.fsdp import FsdpConfig
from agentrl.core.errors import UserError
from agentrl.training import load_model
from agentrl.training.model import export
from agentrl.training.model.export import write_whole
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.lazy_tensors import LazyTensor, lazy_loading
from agentrl.training.model.loading import float32_masters
from agentrl.training.model.value_model import load_value_model
from agentrl.training.parallel import fsdp
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.sharding import shard
from agentrl.training.parallel.shards import local
from tests.media import vision_model
from tests.training.tiny import CPU, SIZES, tiny

EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXERS = {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}
KINDS = {
    "llama": {"tie_word_embeddings": True},
    "qwen3_moe": EXPERTS,  # a file for each expert's matrix: stacked and joined
    "gpt_oss": EXPERTS | {"layer_types": ["sliding_attention", "full_attention"]},
    "lfm2_moe": EXPERTS | MIXERS,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for kind, fields in KINDS.items():
        tiny(kind, packed=False, **fields).save_pretrained(folder / kind)
    vision_model.folder(folder / "qwen2_5_vl", "qwen2_5_vl")
    return folder


def policy(folder, **fields):
    return float32_masters(load_model(Model(path=str(folder), **fields), device=CPU, seed=3))


def critic(folder):
    return load_value_model(Model(path=str(folder)), device=CPU, seed=3)


def tensors(model):
    return dict(model.module.named_parameters()) | dict(model.module.named_buffers())


def lazily(make, *arguments, first=True, **fields):
    with lazy_loading(first=first):
        return make(*arguments, **fields)


@pytest.mark.parametrize("kind", [*KINDS, "qwen2_5_vl"])
def test_every_part_of_a_lazy_tensor_equals_that_of_the_tensor(kind, folders):
    found = tensors(lazily(policy, folders / kind, dtype="bfloat16"))
    for name, whole in tensors(policy(folders / kind, dtype="bfloat16")).items():
        lazy = found[name]
        assert isinstance(lazy, LazyTensor) or not isinstance(whole, nn.Parameter)
        assert (lazy.dtype, lazy.shape, lazy.requires_grad) == (whole.dtype, whole.shape, whole.requires_grad)
        if isinstance(lazy, LazyTensor):
            boxes = [tuple(slice(i * n // 3, (i + 2) * n // 3) for n in whole.shape) for i in range(2)]
            assert torch.equal(lazy.whole(), whole)
            assert all(torch.equal(lazy.part(box), whole[box]) for box in boxes if whole[box].numel())


@pytest.fixture
def ranks():
    """The last of three ranks, as far as sharding knows."""
    dist.init_process_group("fake", rank=2, world_size=3, store=FakeStore())
    yield Ranks(mesh=init_device_mesh("cpu", (3,), mesh_dim_names=("shard",)))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("make", "kind", "fields"),
    [
        (policy, "llama", {"dtype": "bfloat16"}),
        (policy, "qwen3_moe", {}),
        (policy, "llama", {"lora_rank": 4}),
        (critic, "qwen3_moe", {}),
    ],
)
def test_a_rank_reads_its_shards_alone(make, kind, fields, folders, ranks, monkeypatch):
    read = []
    compute = LazyTensor.of
    monkeypatch.setattr(LazyTensor, "of", lambda source: compute(Noting(source, read)))
    expected = tensors(make(folders / kind, **fields))
    whole = lazily(make, folders / kind, **fields)
    read.clear()  # transformers compares tied weights
    model = shard(whole, ranks, FsdpConfig(), device=CPU)
    stored = 0
    for name, parameter in model.module.named_parameters():
        rows = expected[name][fsdp._box(parameter)] if local(parameter).numel() else expected[name][:0]
        assert torch.equal(local(parameter), rows), name
        stored += rows.numel() * ("lora" not in name and "score" not in name)
    assert sum(read) == stored
    for name, buffer in model.module.named_buffers():
        assert torch.equal(buffer, expected[name]), name


class Noting:
    """A slice of a file, which notes how many values are read."""

    def __init__(self, source, read):
        self.source, self.read, self.get_shape = source, read, source.get_shape

    def __getitem__(self, box):
        values = self.source[box]
        self.read.append(values.numel())
        return values


def test_ranks_that_see_other_models_are_refused(folders, ranks, monkeypatch):
    monkeypatch.setattr(Ranks, "broadcast", lambda self, shapes: dict.fromkeys(shapes, ()))
    with pytest.raises(UserError, match="ranks do not see the same model"):
        shard(lazily(policy, folders / "llama"), ranks, FsdpConfig(), device=CPU)


def lazy(values: torch.Tensor, folder) -> LazyTensor:
    save_file({"values": values}, folder / "file.safetensors")
    return LazyTensor.of(safe_open(folder / "file.safetensors", "pt").get_slice("values"))


def test_any_operation_can_be_done_with_a_lazy_tensor(tmp_path):
    values = torch.arange(24.0).view(4, 6)
    found = lazy(values, tmp_path)
    box = (slice(1, 3), slice(2, 5))
    rotated: Any = found.view(2, 2, 6).transpose(1, 2).flip(0)
    assert isinstance(rotated, LazyTensor)
    assert torch.equal(rotated.part((*box[:1], *box)), values.view(2, 2, 6).transpose(1, 2).flip(0)[(*box[:1], *box)])
    half: Any = torch.chunk(found, 2)[1]
    assert torch.equal(half.part((slice(0, 2), slice(1, 3))), values[2:, 1:3])
    assert torch.equal(torch.cat([found, torch.ones(1, 6)]), torch.cat([values, torch.ones(1, 6)]))  # not lazy any more
    assert torch.equal(found, values)
    total: Any = found.sum()
    assert total.whole() == 276
    copied: Any = copy.deepcopy(nn.Parameter(found))
    assert torch.equal(copied.whole(), values)
    assert isinstance(copied, nn.Parameter)
    with pytest.raises(TypeError, match="the tensor is in a file"):
        found.zero_()


def test_a_quantised_model_has_weights_on_the_first_rank_alone(tmp_path):
    module = tiny("qwen3", **SIZES | {"hidden_size": 128, "head_dim": 32, "num_key_value_heads": 4})
    module.config.quantization_config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    weight = "model.layers.0.self_attn.q_proj.weight"
    state[weight + "_scale_inv"] = torch.full((1, 1), 0.5)
    state[weight] = torch.ones(128, 128).to(torch.float8_e4m3fn)
    module.config.save_pretrained(tmp_path)
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    first, other = (tensors(lazily(policy, tmp_path, first=value))[weight] for value in (True, False))
    assert torch.equal(first, torch.full((128, 128), 0.5))
    assert (other.device.type, other.dtype, other.shape) == ("meta", first.dtype, first.shape)


def test_a_model_is_written_with_one_file_in_memory(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "FILE_BYTES", 50_000)
    model = ModelHandle(load_model(Model(path=str(folders / "qwen3_moe")), device=CPU, seed=0).module)
    write_whole(model.base, model.units(), tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    expected = load_file(folders / "qwen3_moe" / "model.safetensors")
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert torch.equal(
        tensors(policy(tmp_path))["lm_head.weight"], tensors(policy(folders / "qwen3_moe"))["lm_head.weight"]
    )
