"""Joined parameters stay ordinary parameters to everything that trains, saves, loads or copies a module."""

import copy
import io
from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict
from transformers import AutoModelForCausalLM

from agentrl.engines.hf.projection import Projection, Unsupported, joined
from agentrl.engines.hf.weights import read_weights
from tests.engines import tiny

IDS = torch.arange(1, 30)[None]


def train(model: Any, steps: int = 3) -> list[float]:
    """Losses of a few AdamW steps, with an epsilon that keeps gradients of rounding alone from becoming steps."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, eps=1e-2)
    losses = []
    for _ in range(steps):
        loss = model(IDS, labels=IDS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pair() -> tuple[Any, Any]:
    """The same model twice, the first one with joined parameters."""
    model = tiny.llama()
    read_weights(model, 100)
    return model, tiny.llama()


def assert_joined(model: Any) -> None:
    attention = model.model.layers[0].self_attn
    storages = {layer.weight.untyped_storage().data_ptr() for layer in (attention.q_proj, attention.k_proj)}
    assert len(storages) == 1


def test_joining_changes_no_value_and_shares_memory() -> None:
    a, b = torch.nn.Parameter(torch.randn(3, 5)), torch.nn.Parameter(torch.randn(2, 5))
    expected = torch.cat([a.detach(), b.detach()])
    whole = joined([a, b])
    assert torch.equal(whole, expected)
    with torch.no_grad():
        b.fill_(7.0)
    assert torch.equal(whole[3:], torch.full((2, 5), 7.0))
    assert joined([a, b]).data_ptr() == whole.data_ptr(), "joined once, joined for good"
    assert joined([b, a]).data_ptr() != whole.data_ptr(), "in another order they are no neighbours"


def test_training_goes_on_as_without_the_engine() -> None:
    model, plain = pair()
    assert train(model) == pytest.approx(train(plain), abs=1e-6)
    assert_joined(model)


def test_an_optimizer_step_is_seen_without_a_copy() -> None:
    model = tiny.llama()
    weights = read_weights(model, 100)
    train(model, 1)
    qkv = torch.cat([getattr(model.model.layers[1].self_attn, f"{name}_proj").weight for name in "qkv"])
    assert torch.equal(weights.layers[1].qkv.weight, qkv)


def test_parameters_joined_inside_inference_mode_can_be_trained() -> None:
    model = tiny.llama()
    with torch.inference_mode():
        read_weights(model, 100)
    train(model, 1)


def test_saving_and_loading(tmp_path: Any) -> None:
    model, plain = pair()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for (name, a), (_, b) in zip(loaded.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    plain_buffer = io.BytesIO()
    torch.save(plain.state_dict(), plain_buffer)
    assert len(buffer.getvalue()) < 1.1 * len(plain_buffer.getvalue()), "each storage is written once"
    tiny.change(model)
    buffer.seek(0)
    model.load_state_dict(torch.load(buffer))
    assert_joined(model)
    for (name, a), (_, b) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_copy_is_independent() -> None:
    model, plain = pair()
    twin = copy.deepcopy(model)
    tiny.change(model)
    for (name, a), (_, b) in zip(twin.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_moving_the_module_separates_and_reading_joins_again() -> None:
    model, _ = pair()
    model.to(torch.float64)
    weights = read_weights(model, 100)
    assert weights.layers[0].qkv.weight.dtype == torch.float64
    assert_joined(model)


def test_an_adapter_saves_as_without_the_engine() -> None:
    model, plain = tiny.lora(), tiny.lora()
    read_weights(model, 100)
    ours, theirs = get_peft_model_state_dict(model), get_peft_model_state_dict(plain)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_layers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(Unsupported, match="side by side"):
        Projection(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False))
    with pytest.raises(Unsupported, match="Bilinear"):
        Projection(torch.nn.Bilinear(2, 2, 2))
    with pytest.raises(Unsupported, match="dtype"):
        Projection(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).double())
