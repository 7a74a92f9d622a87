"""A checkpoint becomes a folder that loads: models as they were trained, adapters by themselves or folded in."""

import pytest
import torch
from peft import PeftModel
from transformers import AutoTokenizer

from agentrl.cli.main import main
from agentrl.config.schema import Model
from agentrl.core.errors import UserError
from agentrl.training import load_model, save_pretrained
from agentrl.training.checkpoint.merge import merge
from agentrl.training.model.export import write_model
from agentrl.training.model.head.logprobs import TokenLogprobs
from tests.training.saved import save_checkpoint
from tests.training.test_actor import actor_of
from tests.training.test_model import tokenizer
from tests.training.tiny import CPU, random_batch, tiny

LENGTHS = [7, 4, 9, 6]


def checkpoint(folder, model, **actor):
    """A run's folder after one step, and what its policy says of a batch."""
    module = load_model(model, device=CPU, seed=0).module
    trained = actor_of(module, **actor)
    trained.update(random_batch(LENGTHS))
    if model.lora_rank:
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
    state = {"policy": trained.state_dict()}
    save_checkpoint(
        folder / "checkpoints", 3, state, lambda out: write_model(trained.model, tokenizer(), out, weights=False)
    )
    return TokenLogprobs(module)(random_batch([8, 5]))[0].detach()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    save_pretrained(tiny(tie_word_embeddings=True), tokenizer(), folder)
    return folder


def says(folder):
    module = load_model(Model(path=str(folder)), device=CPU, seed=5).module
    return module, TokenLogprobs(module)(random_batch([8, 5]))[0].detach()


def test_a_run_becomes_a_model(base, tmp_path, capsys):
    expected = checkpoint(tmp_path / "run", Model(path=str(base)))
    assert not list((tmp_path / "run").rglob("model.safetensors"))  # weights lie there once
    assert main(["merge", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    assert "step 3" in capsys.readouterr().err
    assert torch.equal(says(tmp_path / "out")[1], expected)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("w5")["input_ids"] == [5]
    old = tmp_path / "out" / "model-00001-of-00002.safetensors"
    old.touch()
    again = ["merge", str(tmp_path / "run"), str(tmp_path / "out")]
    assert main(again) == 2
    assert "has a model already" in " ".join(capsys.readouterr().err.split())
    assert old.exists()
    assert main([*again, "--overwrite"]) == 0
    assert not old.exists()  # an engine would load it with the new ones
    merge(tmp_path / "run/checkpoints/global_step_3", tmp_path / "half", dtype="bfloat16")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "out")]
    assert sizes[0] < 0.6 * sizes[1]


def test_fused_experts_are_written_as_checkpoints_have_them(tmp_path):
    fields = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    save_pretrained(tiny("qwen3_moe", **fields), tokenizer(), tmp_path / "base")
    expected = checkpoint(tmp_path / "run", Model(path=str(tmp_path / "base")))
    merge(tmp_path / "run/checkpoints/global_step_3", tmp_path / "out")
    assert torch.equal(says(tmp_path / "out")[1], expected)


def test_an_adapter_stays_one_or_is_folded_in(base, tmp_path):
    expected = checkpoint(tmp_path / "run", Model(path=str(base), lora_rank=4))
    step = tmp_path / "run/checkpoints/global_step_3"
    merge(step, tmp_path / "adapter")
    module, found = says(tmp_path / "adapter")
    assert isinstance(module, PeftModel)
    assert torch.equal(found, expected)
    merge(step, tmp_path / "whole", adapter=True)
    module, found = says(tmp_path / "whole")
    assert not isinstance(module, PeftModel)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_path_that_is_no_checkpoint_is_an_error(tmp_path, capsys):
    assert main(["merge", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "has none; name a folder global_step_<n>" in capsys.readouterr().err
    save_checkpoint(tmp_path, 1, {"policy": {}})
    with pytest.raises(UserError, match="save_contents was without model"):
        merge(tmp_path / "global_step_1", tmp_path / "out")
