"""The critic's network: from any causal LM's folder, packed as exact as alone."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForTokenClassification

from agentrl.config.schema import Model
from agentrl.core.errors import UserError
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.packing_probe import pack_where_exact
from agentrl.training.model.value_model import TokenValues, load_value_model
from tests.training.tiny import CPU, random_batch, tiny

LENGTHS = [7, 1, 12, 4, 9]


def value_model(folder: Path, **settings: object):
    return load_value_model(Model(path=str(folder), **settings), device=CPU, seed=0).module


def with_a_head(module):
    torch.manual_seed(3)
    torch.nn.init.normal_(module.score.weight)
    torch.nn.init.normal_(module.score.bias)
    return module


@pytest.mark.parametrize("kind", ["llama", "olmo"])
def test_a_causal_lm_becomes_one_whose_first_values_are_0(kind: str, tmp_path: Path) -> None:
    policy = tiny(kind)
    policy.save_pretrained(tmp_path)
    module = value_model(tmp_path)
    batch = random_batch(LENGTHS)
    assert not TokenValues(module)(batch)[0].any()
    backbone, theirs = module.base_model.state_dict(), policy.base_model.state_dict()
    assert all(torch.equal(backbone[name], theirs[name]) for name in theirs)


def test_a_value_is_that_of_the_tokens_before_and_packing_does_not_change_it(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    module = with_a_head(value_model(tmp_path))
    assert pack_where_exact(ModelHandle(module), CPU)
    batch = random_batch(LENGTHS)
    values = TokenValues(module)(batch)[0].detach()
    for span in torch.arange(batch.num_tokens).split(batch.lengths):
        alone = module(input_ids=batch.ids[span][None], use_cache=False).logits[0, :, 0].detach()
        shifted = torch.cat([torch.zeros(1), alone[:-1]]) * batch.mask[span]
        torch.testing.assert_close(values[span], shifted, atol=1e-5, rtol=1e-5)


def test_a_trained_value_model_reloads_as_a_transformers_class(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path / "policy")
    module = with_a_head(value_model(tmp_path / "policy"))
    module.save_pretrained(tmp_path / "critic")
    again = value_model(tmp_path / "critic")
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic")
    assert torch.equal(again.score.weight, module.score.weight)
    assert torch.equal(theirs.score.weight, module.score.weight)


def test_the_head_is_trained_beside_an_adapter(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    module = value_model(tmp_path, lora_rank=2)
    batch = random_batch(LENGTHS)
    (TokenValues(module)(batch)[0] - 1.0).square().sum().backward()
    learning = {
        name for name, p in module.named_parameters() if p.requires_grad and p.grad is not None and p.grad.any()
    }
    assert any("score" in name for name in learning)
    assert not any("score" in name and "lora" in name for name, _ in module.named_parameters())


def test_a_classifier_of_many_labels_is_no_critic(tmp_path: Path) -> None:
    config = tiny().config
    config.num_labels = 3
    AutoModelForTokenClassification.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"critic\.model\.path: .*3 labels"):
        value_model(tmp_path)
