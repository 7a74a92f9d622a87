"""Loss weights against the definitions, and against themselves under every cut into micro-batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algorithms.aggregate import LOSS_AGG_MODES, token_weights
from agentrl.core.errors import UserError
from tests.algorithms.packings import packings

NORM = 12.0


def reference(losses, mask, groups_of_tokens, mode):
    """The aggregate as a loop: `groups_of_tokens` is a list of token index lists, one a sequence."""
    per_sequence = [[losses[i] for i in tokens if mask[i]] for tokens in groups_of_tokens]
    per_sequence = [values for values in per_sequence if values]
    if not per_sequence:
        return 0.0
    if mode == "token-mean":
        flat = [v for values in per_sequence for v in values]
        return sum(flat) / len(flat)
    if mode == "token-sum":
        return sum(sum(values) for values in per_sequence)
    score = {
        "seq-mean-token-sum": sum,
        "seq-mean-token-mean": lambda values: sum(values) / len(values),
        "seq-mean-token-sum-norm": lambda values: sum(values) / NORM,
    }[mode]
    return sum(score(values) for values in per_sequence) / len(per_sequence)


@pytest.mark.prevents("per-token losses count tool tokens")
@pytest.mark.parametrize("by_trajectory", [True, False])
@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
@given(packing=packings(), seed=st.integers(0, 1000))
def test_weights_give_the_aggregate(packing, seed, mode, by_trajectory):
    losses = torch.randn(len(packing.mask), generator=torch.Generator().manual_seed(seed))
    weights = token_weights(
        packing.mask, packing.cu_seqlens, mode, trajectory=packing.trajectory if by_trajectory else None, norm=NORM
    )
    owners = sorted(set(packing.trajectory.tolist()))
    units = [packing.tokens(t) for t in owners] if by_trajectory else [list(span) for span in packing.spans]
    expected = reference(losses.tolist(), packing.mask.tolist(), units, mode)
    assert float((weights * losses).sum()) == pytest.approx(expected, abs=1e-5)
    assert not weights[~packing.mask].any()


@given(packing=packings(), data=st.data())
def test_any_split_into_micro_batches_sums_to_the_whole(packing, data):
    mode = data.draw(st.sampled_from(LOSS_AGG_MODES))
    weights = token_weights(packing.mask, packing.cu_seqlens, mode, trajectory=packing.trajectory, norm=NORM)
    losses = torch.arange(len(packing.mask), dtype=torch.float32)
    owners = [data.draw(st.integers(0, 2)) for _ in packing.spans]
    parts = [sum(float((weights * losses)[list(s)].sum()) for s, o in zip(packing.spans, owners, strict=True) if o == i)
             for i in range(3)]  # fmt: skip
    assert sum(parts) == pytest.approx(float((weights * losses).sum()), rel=1e-5, abs=1e-5)


def test_an_unknown_mode_names_the_known_ones():
    with pytest.raises(UserError, match=r"'mean' does not exist.*seq-mean-token-sum-norm"):
        token_weights(torch.ones(2, dtype=torch.bool), torch.tensor([0, 2]), "mean")
