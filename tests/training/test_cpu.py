"""tune_cpu keeps float32 products exact, whatever it switches."""

import pytest
import torch

from agentrl.training.perf import cpu


@pytest.fixture(autouse=True)
def restore():
    threads, precision = torch.get_num_threads(), torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    yield
    torch.set_num_threads(threads)
    torch.backends.mkldnn.matmul.fp32_precision = precision  # type: ignore[attr-defined]


def test_products_stay_exact():
    cpu.tune_cpu()
    assert cpu.product_error() < cpu.EXACT


def test_an_inexact_switch_is_undone(monkeypatch):
    before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    monkeypatch.setattr(cpu, "product_error", lambda: 4e-3)
    cpu.tune_cpu()
    assert torch.backends.mkldnn.matmul.fp32_precision == before  # type: ignore[attr-defined]


def test_the_error_of_bfloat16_would_be_seen():
    a, b = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0))
    exact = a.double() @ b.double()
    error = ((a.bfloat16() @ b.bfloat16()).double() - exact).abs().max() / exact.abs().max()
    assert error > 100 * cpu.EXACT


def test_threads():
    cpu.tune_cpu(1)
    assert torch.get_num_threads() == 1
