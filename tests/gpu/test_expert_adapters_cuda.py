"""Adapters of experts and the load of experts on a GPU, in bfloat16 and compiled."""

import pytest
import torch

from agentrl.config.schema import Actor, Model, Optim
from agentrl.config.schema.actor import Router
from agentrl.training import PolicyActor
from agentrl.training.model.adapter import new_adapter
from agentrl.training.model.grouped_experts import use_grouped_adapters, use_grouped_experts
from agentrl.training.model.handle import ModelHandle
from agentrl.training.perf.compiled_block import compile_blocks
from tests.training.mixtures import mixture
from tests.training.tiny import random_batch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
CUDA = torch.device("cuda")


def updates(kind: str, *, rank: int, grouped: bool, compiled: bool) -> list[dict[str, float]]:
    """The metrics of two updates of an adapted mixture."""
    module = mixture(kind)
    use_grouped_experts(module)
    module = new_adapter(module, Model(lora_rank=rank, target_parameters="all-experts"))
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    if grouped:
        use_grouped_adapters(module)
    model = ModelHandle(module.to(CUDA), compute_dtype=torch.bfloat16)
    if compiled:
        model.compiled = compile_blocks(block for _, block in model.blocks())
    settings = Actor(router=Router(aux_loss_coef=0.01), optim=Optim(lr=1e-3))
    actor = PolicyActor(model, actor=settings, temperature=1.0, device=CUDA, total_steps=9)
    return [actor.update(random_batch([40, 50, 60, 70], seed=step)) for step in range(2)]


@pytest.mark.parametrize("rank", [4, 8, 12])
@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss", "glm4_moe"])
def test_products_of_low_rank_equal_the_adapters_of_peft(kind: str, rank: int) -> None:
    wanted = updates(kind, rank=rank, grouped=False, compiled=False)
    for compiled in (False, True):
        found = updates(kind, rank=rank, grouped=True, compiled=compiled)
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine["actor/grad_norm"] == pytest.approx(theirs["actor/grad_norm"], rel=0.05)
            assert mine["router/max_load"] == pytest.approx(theirs["router/max_load"], rel=0.05)
            assert mine["router/aux_loss"] == pytest.approx(theirs["router/aux_loss"], rel=0.02)
