"""Distances to a teacher, against formulas written out, TRL's generalised Jensen-Shannon and verl's losses."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from agentrl.algorithms.distillation import Distance, with_tail

EXACT = {"atol": 1e-6, "rtol": 1e-6}


@pytest.fixture
def logits():
    torch.manual_seed(0)
    return torch.randn(2, 5, 40, dtype=torch.float32) * 2, torch.randn(2, 5, 40) * 2


def value_and_gradient(function, logits):
    leaf = logits.clone().requires_grad_()
    value = function(leaf)
    return value.detach(), torch.autograd.grad(
        (value * torch.linspace(-1, 2, value.numel()).view_as(value)).sum(), leaf
    )[0]


def assert_equal(one, other, logits):
    for mine, theirs in zip(*(value_and_gradient(f, logits) for f in (one, other)), strict=True):
        torch.testing.assert_close(mine, theirs, **EXACT)


def written_out(own, theirs, kind, beta):
    """By probabilities in float64."""
    p, q = own.double().softmax(-1), theirs.double().softmax(-1)
    if kind == "jsd" and beta not in (0.0, 1.0):
        m = beta * q + (1 - beta) * p
        return (beta * (q * (q / m).log()).sum(-1) + (1 - beta) * (p * (p / m).log()).sum(-1)).float()
    forward = kind == "forward_kl" or (kind == "jsd" and beta == 0.0)
    return ((q * (q / p).log()) if forward else (p * (p / q).log())).sum(-1).float()


KINDS = [("forward_kl", 0.5), ("reverse_kl", 0.5), *(("jsd", beta) for beta in (0.0, 0.1, 0.3, 0.5, 0.9, 1.0))]


@pytest.mark.parametrize(("kind", "beta"), KINDS)
def test_the_distance_over_the_whole_vocabulary_is_the_formula(kind, beta, logits):
    own, theirs = logits
    distance = Distance(kind, beta)
    assert_equal(lambda x: distance.of_logits(x, theirs).distance, lambda x: written_out(x, theirs, kind, beta), own)


def trl_divergence():
    """TRL's function, without its imports, which need more packages."""
    spec = find_spec("trl")
    file = spec and Path(spec.origin).parent / "experimental/gkd/gkd_trainer.py"
    if not file or not file.exists():
        pytest.skip("needs trl")
    tree = ast.parse(file.read_text())
    found = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "generalized_jsd_loss")
    found.decorator_list = []
    names = {"torch": torch, "F": F}
    exec(compile(ast.Module([found], []), str(file), "exec"), names)
    return names["generalized_jsd_loss"]


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_it_is_that_of_trl(beta, temperature, logits):
    own, theirs = logits
    labels = torch.tensor([[1, 2, -100, 4, 5], [-100, -100, 2, 3, 4]])
    trl, distance = trl_divergence(), Distance("jsd", beta)

    def mine(x):
        kept = distance.of_logits(x / temperature, theirs / temperature).distance[labels != -100]
        return (kept.sum() / kept.numel())[None]

    def of_trl(x):
        return trl(x, theirs, labels=labels, beta=beta, temperature=temperature)[None]

    assert_equal(mine, of_trl, own)


@pytest.mark.parametrize("least", [None, -3.0])
def test_forward_kl_of_the_teachers_likeliest_tokens_is_that_of_verl(least, logits):
    """Not renormalised, no tail; log-probs clamped first, the sum at 0, then at its bounds."""
    own, theirs = logits
    known, ids = theirs.log_softmax(-1).topk(4)
    distance = Distance("forward_kl", topk=4, tail=False, log_prob_min_clamp=least, loss_max_clamp=1.5)

    def of_verl(x):
        s, t = F.log_softmax(x, -1).gather(-1, ids), known
        if least is not None:
            s, t = s.clamp_min(least), t.clamp_min(least)
        return F.kl_div(s, t, log_target=True, reduction="none").sum(-1).clamp_min(0.0).clamp(-1.5, 1.5)

    assert_equal(lambda x: distance.of_tokens(x, ids.int(), known).distance, of_verl, own)
    assert_equal(lambda x: distance.of_logits(x, theirs).distance, of_verl, own)
    found = distance.of_tokens(own, ids, known)
    torch.testing.assert_close(found.teacher_mass, known.exp().sum(-1))
    torch.testing.assert_close(found.student_mass, own.softmax(-1).gather(-1, ids).sum(-1))


@pytest.mark.parametrize(("kind", "beta"), KINDS)
@pytest.mark.parametrize("support", ["teacher", "student"])
def test_the_tail_is_one_more_token(kind, beta, support, logits):
    own, theirs = logits
    chosen = (theirs if support == "teacher" else own).topk(3).indices

    def bucketed(x):
        rest = torch.ones_like(x).scatter(-1, chosen, 0.0).bool()
        tail = x.masked_fill(~rest, -torch.inf).logsumexp(-1, keepdim=True)
        return torch.cat([x.gather(-1, chosen), tail], -1)

    distance = Distance(kind, beta, topk=3, support=support)
    mine = lambda x: distance.of_logits(x, theirs).distance  # noqa: E731
    assert_equal(mine, lambda x: written_out(bucketed(x), bucketed(theirs), kind, beta), own)


def test_all_tokens_as_top_k_are_the_whole_vocabulary(logits):
    own, theirs = logits
    found = Distance("jsd", 0.3, topk=40).of_logits(own, theirs)
    torch.testing.assert_close(found, Distance("jsd", 0.3).of_logits(own, theirs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["kl", "abs", "mse", "low_var_kl"])
def test_the_estimate_from_the_sampled_token_is_that_of_verl(name):
    own, theirs = torch.linspace(-9, -0.1, 30), torch.linspace(-0.2, -30, 30)

    def of_verl(x):
        d = x - theirs
        low = (torch.exp((theirs - x).clamp(-20, 20)) - (theirs - x).clamp(-20, 20) - 1).clamp(-10, 10)
        found = {"kl": d, "abs": d.abs(), "mse": 0.5 * d.square(), "low_var_kl": low}[name]
        return found.clamp(-6.0, 6.0)

    distance = Distance(estimator=name, topk=0, loss_max_clamp=6.0)
    assert_equal(lambda x: distance.of_sampled(x, theirs), of_verl, own)


def test_figures_of_the_models_are_reported(logits):
    own, theirs = logits
    found = Distance(topk=3).of_logits(own, theirs)
    probs = theirs.softmax(-1)
    torch.testing.assert_close(found.teacher_entropy, -(probs * probs.log()).sum(-1))
    torch.testing.assert_close(found.agreement, (own.argmax(-1) == theirs.argmax(-1)).float())
    assert Distance(topk=3).of_logits(own, own).agreement.all()
    assert ((found.teacher_mass > 0) & (found.teacher_mass < 1)).all()


def test_certain_teachers_give_finite_values_and_gradients():
    own = torch.randn(3, 8, requires_grad=True)
    certain = torch.full((3, 8), -torch.inf).index_fill(1, torch.tensor([2]), 0.0)
    for kind, topk in (("forward_kl", -1), ("jsd", -1), ("forward_kl", 2), ("reverse_kl", 1)):
        value = Distance(kind, topk=topk, log_prob_min_clamp=None if kind != "reverse_kl" else -20.0)
        found = value.of_logits(own, certain).distance
        (slope,) = torch.autograd.grad(found.sum(), own)
        assert torch.cat([found, slope.flatten()]).isfinite().all(), (kind, topk)
    assert with_tail(torch.zeros(2, 1)).isfinite().all()
