"""Faults of containers stop a run before it begins."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.core.errors import UserError
from agentrl.core.points import CONTAINER_PROVIDERS, container_provider
from agentrl.doctor.diagnosis import diagnose
from agentrl.doctor.finding import Finding
from agentrl.doctor.preflight import check_rows
from agentrl.tasks import images
from agentrl.tasks.models import tiny
from tests.registries import scoped
from tests.tasks.local_provider import ROOT, LocalProvider

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(ROOT, str(tmp_path))
    with scoped(CONTAINER_PROVIDERS):
        container_provider("local")(LocalProvider)
        yield


def settings(folder: Path, *containers: object, **keys: object) -> list[str]:
    rows = [{"prompt": "Write 5.", "extra_info": {"container": container}} for container in containers]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = {"data.train_files": folder / "rows.jsonl", "rollout.containers.provider": "local", **keys}
    return [f"{key}={value}" for key, value in given.items()]


@pytest.mark.parametrize(
    ("container", "says"),
    [
        ({"image": "broken-build"}, "image broken-build is not there and cannot be pulled"),
        ({"build": "/nowhere"}, "/nowhere has no Dockerfile; write one, or name another folder"),
        ({"image": "hang-build", "build_timeout": 0.1}, "image hang-build took longer than its 0.1 s"),
        ({"imag": "x"}, "rows.jsonl:2: extra_info.container: unknown field 'imag'; did you mean image?"),
    ],
)
def test_a_container_that_cannot_be_is_one_line_before_the_run(
    container: dict[str, object], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "SPARE_SECONDS", 0.0)
    with pytest.raises(UserError) as caught:
        check_rows(compose(settings(tmp_path, {"image": "base"}, container), config_name="train", checks=()))
    assert str(caught.value) == says


def test_images_are_not_looked_at_where_workers_of_other_machines_make_them(tmp_path: Path) -> None:
    words = settings(tmp_path, {"image": "broken-build"}, **{"rollout.agent.num_workers": 2})
    assert check_rows(compose(words, config_name="train", checks=())) == []


def test_an_unknown_provider_is_one_line(tmp_path: Path) -> None:
    words = settings(tmp_path, {"image": "base"}, **{"rollout.containers.provider": "dokcer", "model.path": "x"})
    with pytest.raises(UserError, match=r"^rollout\.containers\.provider=dokcer: did you mean docker\? choose "):
        compose(words, config_name="train")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("model")
    (home / "rows.jsonl").write_text('{"prompt": "Write 5."}')
    shape = tiny.TinyShape(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                           num_attention_heads=2, num_key_value_heads=2)  # fmt: skip
    tiny.prepare(home / "model", [home / "rows.jsonl"], shape=shape, seed=0)
    return str(home / "model")


def test_doctor_runs_the_first_rows_task(tmp_path: Path, model: str) -> None:
    containers = {"image": "base", "set_up": "touch ready", "verify": "test -e answer"}, {"image": "base"}
    words = settings(tmp_path, *containers, **{"model.path": model, "trainer.device": "cpu"})
    found: list[tuple[str, Finding]] = []
    diagnose(compose(words, config_name="train", checks=()), lambda area, finding: found.append((area, finding)))
    (finding,) = (finding for area, finding in found if area == "containers")
    assert finding.text.startswith("rows.jsonl:1: the container's image 0.0 s")
    assert finding.text.endswith("no work at all scores 0")
