"""The point of it all: held-out success rises. The whole `make tiny` recipe, one seed, some minutes."""

from pathlib import Path

import pytest

from benchmarks.demo_seeds import Extra, run_seed


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tiny_preset_learns(tmp_path: Path):
    result = run_seed("tiny", 0, tmp_path, None, Extra())
    assert result.after >= result.before + 0.25
    assert result.after >= 0.6
