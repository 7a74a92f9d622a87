"""The benchmark of one GPU: its arithmetic, and all of its parts on a CPU."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig

from benchmarks.gpu_parts import estimate, least_seconds, model_bytes
from benchmarks.gpu_usage import Sample, busy_by_phase

ROOT = Path(__file__).parents[2]


def test_the_limit_counts_weights_once_a_step_and_all_context() -> None:
    one = [(10, 3)]  # reads 11, 12 and 13 tokens of context in three steps
    assert least_seconds([one], slots=4, weights=100, kv=2, speed=1.0) == 3 * 100 + 2 * 36
    assert least_seconds([one, one], slots=4, weights=100, kv=2, speed=1.0) == 3 * 100 + 4 * 36
    assert least_seconds([one, one], slots=1, weights=100, kv=2, speed=0.5) == 2 * (6 * 100 + 4 * 36)


def test_a_server_that_stays_awake_counts_in_the_doctors_estimate() -> None:
    said = "135M parameters; about 41.1 GiB: weights 513 MiB, AdamW 1.0 GiB; {}; this GPU has 79.2 GiB"
    assert estimate(said.format("the server keeps 18.5 GiB")) == pytest.approx(59.6)
    assert estimate(said.format("the engine asks for what the trainer leaves")) == 41.1
    assert estimate("no GPU") == 0


def test_turns_read_their_own_context() -> None:
    assert least_seconds([[(10, 1), (20, 2)]], slots=1, weights=0, kv=1, speed=1.0) == 11 + 21 + 22


@pytest.mark.parametrize("tied", [True, False])
def test_bytes_of_a_model(tied: bool) -> None:
    config = LlamaConfig(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=32,
        tie_word_embeddings=tied,
    )
    layer = 8 * 8 * 2 + 8 * 4 * 2 + 3 * 8 * 16 + 2 * 8
    assert model_bytes(config) == (2 * (2 * layer + 8 + 8 * 32), 2 * 2 * 2 * 2 * 2)


def test_load_is_split_by_phase() -> None:
    samples = [Sample(time, busy, 1.0) for time, busy in ((0.5, 1.0), (1.5, 0.2), (1.9, 0.4), (2.5, 0.8), (3.5, 0.6))]
    marks = [(1.0, "rollout"), (2.0, ""), (3.0, "update")]
    found = busy_by_phase(samples, marks, begin=1.0, end=3.6)
    assert found == pytest.approx({"rollout": 0.3, "rest": 0.8, "update": 0.6, "step": 0.5})


@pytest.mark.slow
def test_all_parts_run_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks/one_gpu.py", "--device", "cpu", "--tiny", "--out", tmp_path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for row in ("train: step, s", "train: command to the first phase, s", "rollout: 4x1x64 over bare", "update: 512"):
        assert row in said
    assert "failed" not in said
