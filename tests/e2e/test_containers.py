"""Training on rows with a container each."""

import json
from pathlib import Path

import pytest

from agentrl.tracking import read_metrics
from tests.e2e.conftest import agentrl, figures
from tests.tasks.local_provider import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def container(i: int) -> dict[str, str]:
    return {"image": f"i{i % 3}", "set_up": "touch ready", "verify": f"test -e ready && echo {i % 2}"}


@pytest.fixture
def settings(tmp_path: Path, overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "containers").mkdir()
    monkeypatch.setenv(ROOT, str(tmp_path / "containers"))
    rows = [{"prompt": f"Write {i}.", "extra_info": {"container": container(i)}} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return [
        *overrides,
        f"data.train_files={tmp_path / 'rows.jsonl'}",
        "data.val_files=null",
        "trainer.val_before_train=false",
        "rollout.containers.provider=tests.tasks.local_provider:LocalProvider",
        "rollout.containers.max_starting=1",
        "rollout.max_concurrent_trajectories=3",
        "trainer.total_training_steps=2",
    ]


def test_a_deterministic_engine_waits_for_containers_and_repeats(settings: list[str], tmp_path: Path) -> None:
    """Fewer slots than trajectories, and one start at a time: nothing waits for what waits for it."""
    runs = []
    for name in ("first", "second"):
        agentrl("train", *settings, "rollout.deterministic=true", f"trainer.default_local_dir={tmp_path / name}")
        runs.append(figures(tmp_path / name))
    assert runs[0] == runs[1]
    assert [step["tasks/share"] for step in runs[0]] == [1.0, 1.0]
    assert all(0 < step["tasks/success"] < 1 for step in runs[0])
    assert not list((tmp_path / "containers").iterdir())


def test_rows_are_sampled_ahead(settings: list[str], tmp_path: Path) -> None:
    agentrl("train", *settings, "trainer.max_staleness=1", f"trainer.default_local_dir={tmp_path / 'run'}")
    assert all(step["tasks/share"] == 1.0 for step in read_metrics(tmp_path / "run/metrics.jsonl"))
    assert not list((tmp_path / "containers").iterdir())
