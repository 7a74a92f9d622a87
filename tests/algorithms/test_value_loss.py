"""The critic's loss: half a squared error that a clip can only raise."""

import torch

from agentrl.algorithms.losses.clipped import clipped_value_loss


def test_cases_by_hand() -> None:
    #        within the range, beyond it and nearer, beyond it and farther, at the old value
    old = torch.tensor([1.0, 1.0, 1.0, 1.0])
    values = torch.tensor([1.2, 3.0, -1.0, 1.0], requires_grad=True)
    returns = torch.tensor([2.0, 4.0, 4.0, 1.0])
    loss, clipped = clipped_value_loss(values, old, returns, cliprange=0.5)
    torch.testing.assert_close(loss, torch.tensor([0.32, 3.125, 12.5, 0.0]))
    assert clipped.tolist() == [0.0, 1.0, 0.0, 0.0]
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    # no reward for going on beyond the range, no shelter for having gone the wrong way
    torch.testing.assert_close(gradient, torch.tensor([-0.8, 0.0, -5.0, 0.0]))
