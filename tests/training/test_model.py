"""Loading and writing models: what the configuration says happens, and mistakes are named in a line."""

import json
import re

import pytest
import torch
from peft import PeftModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

from agentrl.config.schema import Model
from agentrl.core.errors import UserError
from agentrl.training import load_model, load_tokenizer, save_pretrained
from agentrl.training.model.attention.choosing import PACKED
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.model.packing_probe import pack_where_exact
from tests.training.tiny import CPU, VOCABULARY, random_batch, tiny


def tokenizer():
    words = {f"w{i}": i for i in range(VOCABULARY)}
    bare = Tokenizer(models.WordLevel(words, unk_token="w0"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="w2", chat_template="{{ messages[0].content }}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    save_pretrained(tiny(tie_word_embeddings=True), tokenizer(), path)
    return path


def load(folder, seed=0, **fields):
    return load_model(Model(path=str(folder), **fields), device=CPU, seed=seed).module


def test_a_folder_loads_as_it_was_written(folder):
    module = load(folder)
    assert pack_where_exact(ModelHandle(module), CPU)
    assert module.config._attn_implementation == PACKED
    assert not module.training
    assert next(module.parameters()).dtype == torch.float32
    batch = random_batch([5, 8])
    expected = TokenLogprobs(tiny(tie_word_embeddings=True))(batch)[0]
    torch.testing.assert_close(TokenLogprobs(module)(batch)[0], expected)
    assert load_tokenizer(Model(path=str(folder)))("w5 w7")["input_ids"] == [5, 7]


def test_dtype_and_overrides(folder):
    module = load(
        folder, dtype="bfloat16", override_config={"rope_parameters": {"rope_theta": 5e5}, "attention_dropout": 0.3}
    )
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert module.config.rope_parameters == {"rope_theta": 5e5, "rope_type": "default"}
    assert module.model.layers[0].self_attn.attention_dropout == 0.0  # dropout would make the policy another one


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("opt", {"ffn_dim": 32, "word_embed_proj_dim": 32, "dropout": 0.3, "attention_dropout": 0.3, "layerdrop": 0.3}),
        ("bloom", {"n_head": 2, "n_layer": 2, "hidden_dropout": 0.3, "attention_dropout": 0.3}),
        ("falcon", {"hidden_dropout": 0.3, "attention_dropout": 0.3}),  # reads its configuration as it runs
        ("gpt2", {"n_embd": 32, "n_head": 2, "n_layer": 2, "resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3}),
    ],
)
def test_no_kind_of_dropout_is_left(tmp_path, kind, fields):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 97}
    shared = sizes if kind in ("opt", "falcon") else {"hidden_size": 32, "vocab_size": 97} if kind == "bloom" else {}
    AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**shared, **fields)).save_pretrained(tmp_path)
    module = load_model(Model(path=str(tmp_path)), device=CPU, seed=0).module.train()
    first, second = (module(input_ids=torch.arange(3, 20)[None]).logits for _ in range(2))
    assert torch.equal(first, second)


def test_gradient_checkpointing_is_switched_on(folder):
    assert load(folder, enable_gradient_checkpointing=True).model.gradient_checkpointing
    assert not load(folder).model.gradient_checkpointing


def test_the_seed_decides_a_new_adapter(folder):
    def first_matrix(seed):
        module = load(folder, seed=seed, lora_rank=4, target_modules=["q_proj"])
        assert isinstance(module, PeftModel)
        names = [n for n, p in module.named_parameters() if p.requires_grad]
        assert all("q_proj.lora_" in n for n in names)
        return dict(module.named_parameters())[names[0]]

    assert torch.equal(first_matrix(1), first_matrix(1))
    assert not torch.equal(first_matrix(1), first_matrix(2))


def test_modules_may_be_left_out_of_lora(folder):
    names = [n for n, p in load(folder, lora_rank=2, exclude_modules=["q_proj"]).named_parameters() if p.requires_grad]
    assert names
    assert not [n for n in names if "q_proj" in n]


def test_a_chat_template_may_be_given_as_text(folder):
    model = Model(path=str(folder), chat_template="{{ messages[0].content }}!")
    shown = load_tokenizer(model).apply_chat_template([{"role": "user", "content": "w5"}], tokenize=False)
    assert shown == "w5!"


def test_lora_alpha_scales_the_adapter(folder):
    module = load(folder, lora_rank=4, lora_alpha=12.0)
    assert module.base_model.model.model.layers[0].self_attn.q_proj.scaling["default"] == 3.0


def test_an_adapter_of_bfloat16_trains_in_float32(folder):
    module = load(folder, dtype="bfloat16", lora_rank=4)
    assert {p.dtype for p in module.parameters() if p.requires_grad} == {torch.float32}


def trained_adapter(folder):
    module = load(folder, lora_rank=4)
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return module


def test_an_adapter_is_written_alone_and_resumes(folder, tmp_path):
    module, batch = trained_adapter(folder), random_batch([5, 8])
    before = TokenLogprobs(module)(batch)[0]
    save_pretrained(module, tokenizer(), tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    again = load(tmp_path / "adapter")
    assert torch.equal(TokenLogprobs(again)(batch)[0], before)
    assert any(p.requires_grad for p in again.parameters())
    with pytest.raises(UserError, match="is an adapter of rank 4; leave lora_rank out"):
        load(tmp_path / "adapter", lora_rank=8)
    for file in (tmp_path / "adapter").glob("*token*"):
        file.unlink()
    assert load_tokenizer(Model(path=str(tmp_path / "adapter")))("w5")["input_ids"] == [5]  # its base's


def test_merging_writes_a_plain_model_with_the_same_logits(folder, tmp_path):
    module, batch = trained_adapter(folder), random_batch([5, 8])
    before = TokenLogprobs(module)(batch)[0]
    save_pretrained(module, tokenizer(), tmp_path / "merged", merge=True)
    merged = load(tmp_path / "merged")
    assert not isinstance(merged, PeftModel)
    torch.testing.assert_close(TokenLogprobs(merged)(batch)[0], before, atol=1e-4, rtol=1e-4)


def test_parameters_that_are_views_of_an_engines_buffer_are_written_once(folder, tmp_path):
    module = load(folder)
    for layer in module.model.layers:
        projections = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
        fused = torch.cat([p.weight.data for p in projections])
        parts = fused.split([len(p.weight) for p in projections])
        for projection, part in zip(projections, parts, strict=True):
            projection.weight.data = part
    save_pretrained(module, tokenizer(), tmp_path)
    sizes = [(path / "model.safetensors").stat().st_size for path in (tmp_path, folder)]
    assert sizes[0] == sizes[1]
    again = load(tmp_path).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in module.state_dict().items())


def test_the_chat_template_may_be_another(folder, tmp_path):
    file = tmp_path / "other.jinja"
    file.write_text("other")
    assert load_tokenizer(Model(path=str(folder), chat_template=str(file))).chat_template == "other"
    other = load_tokenizer(Model(path="nowhere/at-all", tokenizer_path=str(folder)))
    assert other.chat_template.startswith("{{")


def test_an_external_library_is_imported_first(folder, tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="my_models does not import: RuntimeError: imported"):
        load(folder, external_lib="my_models")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": None}, "model.path is not set"),
        ({"path": "./nowhere"}, r"model.path: there is no folder ./nowhere; `agentrl model` prepares one"),
        ({"path": "nobody/nothing"}, "model.path: nobody/nothing is no model"),
        ({"override_config": {"hiden_size": 3}}, "model.override_config.hiden_size is no field of LlamaConfig"),
        ({"lora_rank": 2, "target_modules": ["no_proj"]}, r"model.target_modules \['no_proj'\] does not fit"),
    ],
)
def test_mistakes_are_named_in_a_line(folder, fields, message):
    with pytest.raises(UserError, match=message) as caught:
        load_model(Model(**({"path": str(folder)} | fields)), device=CPU, seed=0)
    assert "\n" not in str(caught.value)


def test_a_broken_folder_is_named(folder, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UserError, match=re.escape(f"model.path: no model can be loaded from {tmp_path}")):
        load(tmp_path)
    with pytest.raises(UserError, match="no tokenizer can be loaded"):
        load_tokenizer(Model(path=str(tmp_path)))


def test_ligers_kernels_need_a_gpu(tmp_path):
    tiny().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"model\.use_liger=true: .* need a GPU"):
        load_model(Model(path=str(tmp_path), use_liger=True), device=CPU, seed=0)
