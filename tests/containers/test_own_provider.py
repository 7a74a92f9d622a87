"""A container provider of one's own: one class, named by its path."""

from pathlib import Path

import pytest

from agentrl.containers.contract import ContainerSpec
from agentrl.core.errors import UserError
from agentrl.core.points import CONTAINER_PROVIDERS
from tests.tasks import local_provider

pytestmark = pytest.mark.integration

KEY = "rollout.containers.provider"
OWN = Path(local_provider.__file__)


async def test_a_class_named_by_its_path_makes_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(local_provider.ROOT, str(tmp_path))
    provider = CONTAINER_PROVIDERS.make(f"{OWN}:LocalProvider", KEY, None)
    spec = ContainerSpec(env={"NAME": "value"})
    await provider.prepare(spec)
    container = provider.container(spec)
    await container.start()
    done = await container.exec('echo "$NAME"; cat; exit 3', timeout=30, stdin=b"given")
    assert (done.code, done.output) == (3, "value\ngiven")
    await provider.close()
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240


def test_a_class_that_misses_a_method_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.read_text().replace("async def prepare", "async def ready"))
    with pytest.raises(UserError, match="prepare"):
        CONTAINER_PROVIDERS.make(f"{tmp_path}/mine.py:LocalProvider", KEY, None)
