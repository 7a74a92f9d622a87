"""What waits in the CPU's memory comes back as it was: the same gradient, the same steps."""

import torch

from agentrl.config.schema import Optim
from agentrl.config.schema.fsdp import FsdpConfig
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.sharding import steps_on_cpu
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
    pack, gone = offload._pack, []

    def watched(tensor):
        packed = pack(tensor)
        if not isinstance(packed, torch.Tensor):
            gone.append(tensor.data_ptr())
        return packed

    monkeypatch.setattr(offload, "_pack", watched)
    assert not gone
    found = gradients(ModelHandle(module, offloads_activations=True), batch)
    assert len(gone) > 20
    assert not {p.data_ptr() for p in module.parameters()} & set(gone)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_results_within_a_compiled_block_leave_too(monkeypatch):
    """Autograd sees them as leaves without a gradient; parameters are leaves with one, or frozen."""
    monkeypatch.setattr(offload, "SMALLEST", 1)
    for frozen in (False, True):
        layer = torch.nn.Linear(4, 3).requires_grad_(not frozen)
        kept: list[tuple[int, ...]] = []

        def watched(tensor, kept=kept):
            packed = offload._pack(tensor)
            if isinstance(packed, torch.Tensor):
                kept.append(tuple(tensor.shape))
            return packed

        block = torch.compile(lambda x, layer=layer: torch.sigmoid(layer(x)).exp() * x.sum(), backend="aot_eager")
        with torch.autograd.graph.saved_tensors_hooks(watched, offload._unpack):
            result = block(torch.randn(5, 4, requires_grad=True) * 1)
        result.sum().backward()
        assert set(kept) <= {(3, 4), (4, 3), (3,)}


def test_an_optimizer_on_the_cpu_takes_the_same_steps() -> None:
    """State and steps are those of copies; the model gets their values, also after its weights were replaced."""
    for name in ("adamw", "adamw_16bit", "muon", "sgd"):
        modules = tiny(seed=0), tiny(seed=0)
        plain, moved = (
            Optimizer(module, Optim(optimizer=name, lr=1e-2), grad_clip=1.0, total_steps=4, offload=offload)
            for module, offload in zip(modules, (False, True), strict=True)
        )
        for step in range(3):
            if step == 2:
                for module in modules:
                    module.load_state_dict(tiny(seed=1).state_dict())
            for optimizer in (plain, moved):
                draw = torch.Generator().manual_seed(step)
                for parameter in optimizer.parameters:
                    parameter.grad = torch.randn(parameter.shape, generator=draw)
                optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(plain.parameters, moved.parameters, strict=True))
        assert not any(parameter in rule.state for rule in moved.rules for parameter in moved.parameters)
        assert moved.copies is not None
        assert moved.state_dict()["numbers"] == plain.state_dict()["numbers"]


def test_a_single_process_steps_on_the_cpu_for_either_key() -> None:
    """Sharded parameters that are in CPU memory themselves need no copies there."""
    alone, sharded = Ranks(), Ranks(world=2, mesh=object())
    both = FsdpConfig(offload_policy=True), FsdpConfig(optimizer_offload=True)
    assert [steps_on_cpu(keys, alone) for keys in (*both, FsdpConfig())] == [True, True, False]
    assert [steps_on_cpu(keys, sharded) for keys in (*both, FsdpConfig())] == [False, True, False]
