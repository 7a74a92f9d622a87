"""What waits in the CPU's memory comes back as it was: the same gradient, the same steps."""

import torch

from agentrl.config.schema import Optim
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.perf import offload
from agentrl.training.update.optimizer import Optimizer
from tests.training.tiny import random_batch, tiny


def gradients(model, batch):
    module = ModelHandle.of(model).module
    module.zero_grad()
    TokenLogprobs(model)(batch)[0].sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters()}


def test_activations_come_back_and_parameters_never_leave(monkeypatch):
    batch, module = random_batch([9, 4]), tiny()
    expected = gradients(module, batch)
    monkeypatch.setattr(offload, "SMALLEST", 1)
    pack, unpack = offload._hooks()
    gone = []

    def watched(tensor):
        packed = pack(tensor)
        if not isinstance(packed, torch.Tensor):
            gone.append(tensor.data_ptr())
        return packed

    monkeypatch.setattr(offload, "_hooks", lambda: (watched, unpack))
    assert not gone
    found = gradients(ModelHandle(module, offloads_activations=True), batch)
    assert len(gone) > 20
    assert not {p.data_ptr() for p in module.parameters()} & set(gone)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_moments_wait_between_steps(monkeypatch):
    moves = []
    monkeypatch.setattr("agentrl.training.update.optimizer.move_moments", lambda *args, home: moves.append(home))
    optimizer = Optimizer(tiny(), Optim(), grad_clip=1.0, total_steps=4, offload=True)
    gradients_of = [torch.ones_like(p) for p in optimizer.parameters]
    for parameter, gradient in zip(optimizer.parameters, gradients_of, strict=True):
        parameter.grad = gradient
    optimizer.step()
    assert moves == [True, False]


def test_moments_are_moved_and_nothing_else():
    state = {torch.zeros(2, device="meta"): {"exp_avg": torch.ones(2), "step": torch.ones(())}}
    offload.move_moments(state, home=True)
    (values,) = state.values()
    assert values["exp_avg"].device.type == "meta"
    assert values["step"].device.type == "cpu"
