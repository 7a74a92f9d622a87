"""Weights from ranks to rollout workers of their own."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from agentrl.config.schema import Config, RayInit
from agentrl.core.errors import InfraError

pytestmark = pytest.mark.integration

SIZE = 4 << 20


@dataclass
class Samplers:
    """In place of the rollout workers: what they get, and how much is in Ray's store then."""

    got: dict[str, torch.Tensor] = field(default_factory=dict)
    stored: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    fails: bool = False

    def call(self, method: str, *args: Any) -> None:
        import ray
        from ray._private.internal_api import memory_summary

        if self.fails and len(self.got) == 3:
            raise InfraError("a worker is gone")
        if method == "load":
            self.got |= {name: tensor.clone() for name, tensor in ray.get(args[0]).tensors()}
            address = ray.get_runtime_context().gcs_address  # other tests may have clusters, too
            (objects,) = re.findall(r"(\d+) objects", memory_summary(address, stats_only=True))
            self.stored.append(int(objects))
        else:
            self.versions.append(args[1])


@pytest.mark.prevents("an export to rollout workers has the whole model in Ray's store, twice with its copies")
@pytest.mark.timeout(120)
def test_an_export_has_two_buckets_in_the_store_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_free_objects_batch_size", "1")  # else what is free is still counted for a second
    from agentrl.runtime.ray.cluster import connect
    from agentrl.runtime.ray.rank import Rank
    from agentrl.runtime.ray.runtime import copy_weights
    from agentrl.runtime.ray.worker_group import spawn

    class Exporting(Rank):
        first = True

        def _trained(self) -> Iterator[tuple[str, Any]]:
            self.made = getattr(self, "made", -1) + 1
            for i in range(8):
                yield f"w{i}", torch.full((SIZE,), i + self.made, dtype=torch.uint8)

    samplers: Any = Samplers()
    with ExitStack() as stack:
        connect(RayInit(address="local", num_cpus=1), stack)
        ranks = spawn(Exporting, Config(), "trainer", 1, 1, gpus=False, stack=stack)
        with pytest.raises(InfraError, match="gone"):  # what it has read of the weights does not count later
            copy_weights(ranks, Samplers(fails=True), SIZE, -1)
        for version in (1, 2):
            copy_weights(ranks, samplers, SIZE, version)
            assert {name: int(w[0]) for name, w in samplers.got.items()} == {f"w{i}": i + version for i in range(8)}
    assert (len(samplers.stored), samplers.versions) == (16, [1, 2])
    assert max(samplers.stored) <= 2
