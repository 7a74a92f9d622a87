"""An export has every tensor of the model that it started from, with its value: trained, frozen, buffer, tied."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.cli.main import main
from agentrl.config.schema import Model, Optim
from agentrl.core.errors import UserError
from agentrl.sft import sft
from agentrl.training import load_model, save_pretrained
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.merge import merge
from agentrl.training.model.export import write_model
from agentrl.training.model.loading import freeze_vision_tower, load_tokenizer
from tests.media import vision_model
from tests.training import test_sft
from tests.training.saved import save_checkpoint
from tests.training.test_actor import actor_of
from tests.training.test_model import tokenizer
from tests.training.test_sft import config
from tests.training.tiny import CPU, random_batch, tiny

pytestmark = pytest.mark.integration

home = test_sft.home  # the fixture

EXPERTS = {"n_routed_experts": 4, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
EXPERTS |= {"moe_intermediate_size": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
GEMMA = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 97, "global_head_dim": 16}
GEMMA |= {"num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"]}
KINDS = {
    "deepseek_v3": EXPERTS | LATENT | {"num_key_value_heads": 4, "head_dim": 8},
    "gemma4_text": GEMMA,
    "minimax_m2": EXPERTS,
    "lfm2_moe": EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "minimax": EXPERTS | {"layer_types": ["linear_attention", "full_attention"], "block_size": 16},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
    "gpt_oss": EXPERTS | {"layer_types": ["sliding_attention", "full_attention"]},
    "qwen3_moe": EXPERTS,
    "llama": {"tie_word_embeddings": True},
}


def source(kind: str, folder: Path, **fields) -> Path:
    """A model's folder whose saved buffers are not those that a new model gets."""
    module = tiny(kind, packed=False, **(KINDS[kind] | fields))
    saved = module.state_dict().keys()
    for name, buffer in module.named_buffers():
        if name in saved and buffer.is_floating_point():
            buffer.uniform_(0.3, 0.8)
    save_pretrained(module, tokenizer(), folder)
    return folder


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    changed = [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]
    assert not changed


def saved(model, folder: Path, *, weights: bool = False) -> Path:
    """A checkpoint after an update at learning rate 0."""
    actor = actor_of(model, optim=Optim(lr=0.0))
    actor.update(random_batch([5, 3]))
    state = {"policy": actor.state_dict()} if not weights else {}
    return save_checkpoint(folder, 1, state, lambda out: write_model(model, tokenizer(), out, weights=weights))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_changes_nothing_exports_the_same_tensors(kind, tmp_path):
    base = source(kind, tmp_path / "base")
    step = saved(load_model(Model(path=str(base)), device=CPU, seed=0), tmp_path / "run")
    merge(step, tmp_path / "out")
    assert_equal(tensors(tmp_path / "out"), tensors(base))


@pytest.mark.parametrize("kind", ["deepseek_v3", "gemma4_text"])
def test_every_command_that_writes_a_model_writes_all_of_it(kind, home, tmp_path):
    text = load_tokenizer(Model(path=str(home / "model")))
    base = source(kind, tmp_path / "base", vocab_size=len(text), vocab_size_per_layer_input=len(text))
    text.save_pretrained(base)
    settings = config(home)
    settings.model.path, settings.optim.lr = str(base), 0.0
    settings.trainer.output_dir = str(tmp_path / "run")
    settings.trainer.total_training_steps, settings.trainer.save_freq = 1, 1
    sft(settings, lambda *_: None)
    assert_equal(tensors(tmp_path / "run"), tensors(base))
    assert main(["merge", str(tmp_path / "run"), str(tmp_path / "merged")]) == 0
    assert_equal(tensors(tmp_path / "merged"), tensors(base))


def test_a_frozen_tower_is_exported(tmp_path):
    base = vision_model.folder(tmp_path / "base", "qwen3_vl")
    model = load_model(Model(path=str(base)), device=CPU, seed=0)
    freeze_vision_tower(model)
    merge(saved(model, tmp_path / "run"), tmp_path / "out")
    assert_equal(tensors(tmp_path / "out"), tensors(base))


def test_a_checkpoint_of_the_model_alone_is_merged(tmp_path):
    base = source("deepseek_v3", tmp_path / "base")
    model = load_model(Model(path=str(base)), device=CPU, seed=0)
    merge(saved(model, tmp_path / "run", weights=True), tmp_path / "out")
    assert_equal(tensors(tmp_path / "out"), tensors(base))


def test_a_buffer_that_training_changes_is_resumed_and_exported(tmp_path):
    base = source("deepseek_v3", tmp_path / "base")
    model = load_model(Model(path=str(base)), device=CPU, seed=0)
    name = next(n for n, _ in model.module.named_buffers() if n.endswith("e_score_correction_bias"))
    model.module.get_buffer(name).add_(1.0)
    step = saved(model, tmp_path / "run")
    merge(step, tmp_path / "out")
    assert torch.equal(tensors(tmp_path / "out")[name], tensors(base)[name] + 1.0)
    resumed = actor_of(load_model(Model(path=str(base)), device=CPU, seed=0))
    resumed.load_state_dict(checkpoints.load(step)[1]["policy"])
    assert torch.equal(resumed.model.module.get_buffer(name), model.module.get_buffer(name))


def test_tables_keep_their_dtype_in_half_precision(tmp_path):
    base = source("deepseek_v3", tmp_path / "base")
    step = saved(load_model(Model(path=str(base)), device=CPU, seed=0), tmp_path / "run")
    merge(step, tmp_path / "out", dtype="bfloat16")
    kinds = {name: t.dtype for name, t in tensors(tmp_path / "out").items()}
    biases = {name for name in kinds if name.endswith("e_score_correction_bias")}
    assert {kinds[name] for name in biases} == {torch.float32}
    assert {kind for name, kind in kinds.items() if name not in biases} == {torch.bfloat16}


def test_a_checkpoint_that_lacks_tensors_is_refused_by_their_names(tmp_path):
    """Older versions saved what trains, and nothing else."""
    model = load_model(Model(path=str(source("gemma4_text", tmp_path / "base"))), device=CPU, seed=0)
    state = actor_of(model).state_dict()
    del state["fixed"]
    step = save_checkpoint(
        tmp_path, 1, {"policy": state}, lambda out: write_model(model, tokenizer(), out, weights=False)
    )
    with pytest.raises(UserError, match=r"lose 2 tensors: model\.layers\.0\.layer_scalar") as error:
        merge(step, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "model.safetensors").exists()
    resumed = actor_of(model)
    resumed.load_state_dict(checkpoints.load(step)[1]["policy"])  # a run resumes from it, and saves all


def test_embeddings_that_files_have_untied_stay_so(tmp_path):
    base = source("llama", tmp_path / "base", tie_word_embeddings=False)
    words = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(words | {"tie_word_embeddings": True}))
    merge(saved(load_model(Model(path=str(base)), device=CPU, seed=0), tmp_path / "run"), tmp_path / "out")
    assert_equal(tensors(tmp_path / "out"), tensors(base))


def test_tensors_that_transformers_does_not_read_are_exported(tmp_path):
    """Multi-token prediction, for example: engines draft with it."""
    base = source("deepseek_v3", tmp_path / "base")
    extra = {f"model.layers.61.{name}": torch.randn(3, 5) for name in ("eh_proj.weight", "embed_tokens.weight")}
    save_file(tensors(base) | extra, base / "model.safetensors", metadata={"format": "pt"})
    model = load_model(Model(path=str(base)), device=CPU, seed=0)
    for weights in (False, True):
        merge(saved(model, tmp_path / f"run-{weights}", weights=weights), out := tmp_path / f"out-{weights}")
        assert_equal(tensors(out), tensors(base))
        assert load_file(out / "model-unread.safetensors").keys() == extra.keys()
    again = load_model(Model(path=str(out)), device=CPU, seed=0)
    save_pretrained(again, tokenizer(), tmp_path / "again")
    assert_equal(tensors(tmp_path / "again"), tensors(base))
