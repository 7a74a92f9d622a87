"""A replica serves only with the policy's weights: both score the same tokens."""

from types import SimpleNamespace

import pytest
import torch

from agentrl.config.schema import Config, Rollout
from agentrl.core.errors import InfraError
from agentrl.engines.sending import probe_for
from agentrl.engines.servers.backend import ServerAnswer
from agentrl.training.model.head.logprobs import score_tokens
from tests.training.tiny import tiny

VOCABULARY = 50


class Drawing:
    """A server that draws the tokens 0, 1, 2... and has the weights of `module`."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module, self.asked = module, 0

    async def generate(self, http, rid, ids, sampling, timeout) -> ServerAnswer:
        self.asked += 1
        drawn = list(range(sampling.max_new_tokens))
        scored = score_tokens(self.module, ids + drawn, torch.device("cpu"))[len(ids) :]
        return ServerAnswer(drawn, scored.tolist(), "length")


def replica(module: torch.nn.Module) -> SimpleNamespace:
    return SimpleNamespace(url="http://there:1", starts=1, http=None, backend=Drawing(module))


def probe(kind: str, module: torch.nn.Module):
    config = Config(rollout=Rollout(weight_check=kind))
    return probe_for(config, lambda ids, _: score_tokens(module, ids, torch.device("cpu")), VOCABULARY)


async def test_the_same_weights_pass_and_others_do_not() -> None:
    policy = tiny("llama")
    await probe("first", policy)([replica(policy)])
    other = tiny("llama")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(3)
    with pytest.raises(InfraError, match="does not have the policy's weights: log-probs differ"):
        await probe("first", policy)([replica(other)])


async def test_weights_rounded_to_8_bits_pass() -> None:
    """Each row is scaled to the largest number of 8 bits, as servers do."""
    policy, rounded, other = tiny("llama"), tiny("llama"), tiny("llama", seed=1)
    with torch.no_grad():
        for name, parameter in rounded.named_parameters():
            if ".layers." in name and parameter.ndim == 2:
                scale = parameter.abs().amax(1, keepdim=True) / 448
                parameter.copy_((parameter / scale).to(torch.float8_e4m3fn).float() * scale)
    await probe("first", policy)([replica(rounded)])
    with pytest.raises(InfraError, match="does not have the policy's weights"):
        await probe("first", policy)([replica(other)])


@pytest.mark.parametrize(("kind", "times"), [("first", 2), ("always", 3)])
async def test_when_it_asks(kind: str, times: int) -> None:
    policy = tiny("llama")
    check, server = probe(kind, policy), replica(policy)
    await check([server])
    await check([server])
    server.starts += 1  # it came back
    await check([server])
    assert server.backend.asked == times
    assert probe("never", policy) is None
