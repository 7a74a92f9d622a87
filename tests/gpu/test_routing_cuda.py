"""Replay of routing on a GPU: compiled blocks, half precision, activation checkpoints."""

import pytest
import torch

from agentrl.config.schema import Actor, Optim
from agentrl.training import PolicyActor
from agentrl.training.model.attention.choosing import use_packed_attention
from agentrl.training.model.grouped_experts import use_grouped_experts
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.routing_probe import routing_of
from agentrl.training.perf.compiled_block import compile_blocks
from tests.training.test_routing import checkpointed, random_experts
from tests.training.tiny import random_batch, tiny

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
SIZES = {"hidden_size": 128, "num_attention_heads": 4, "head_dim": 32, "intermediate_size": 128}
SIZES |= {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "norm_topk_prob": True}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_given_experts_are_met_in_every_pass(compiled: bool, checkpointing: bool) -> None:
    torch._dynamo.reset()
    module = tiny("qwen3_moe", packed=False, num_hidden_layers=10, **SIZES).to(CUDA)
    assert use_packed_attention(module)
    use_grouped_experts(module)
    handle = ModelHandle(checkpointed(module) if checkpointing else module, compute_dtype=torch.bfloat16)
    handle.routing = routing_of(handle, CUDA, "actor.router_replay.mode=R3")
    if compiled:
        handle.compiled = compile_blocks(block for _, block in handle.blocks())
    actor = Actor(optim=Optim(lr=1e-2), ppo_mini_batch_size=2)
    policy = PolicyActor(handle, actor=actor, temperature=1.0, device=CUDA, total_steps=9)
    for length in (40, 70, 55):
        batch = random_batch([length, 30, 21, 9]).to(CUDA)
        given = random_experts(batch.num_tokens, 10, experts=16, k=4, seed=length).to(CUDA)
        batch.experts = given.clone()
        batch.group = torch.arange(4, device=CUDA)
        batch.advantages = torch.randn(batch.num_tokens, device=CUDA) * batch.mask
        batch.old_logprobs = policy.logprobs(batch)[0]
        assert torch.equal(batch.experts, given)
        metrics = policy.update(batch)
        assert metrics["routing/replayed"] == 1.0
        assert metrics["routing/differs"] > 0.5
        assert metrics["actor/grad_norm"] > 0
    # torch.compile takes no contexts of a checkpoint, and replay needs them: such layers run uncompiled.
    assert handle.compiled is None or handle.compiled.works is not checkpointing
