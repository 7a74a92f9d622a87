"""Which Ray cluster a run joins."""

import socket
from types import SimpleNamespace

import pytest

cluster = pytest.importorskip("agentrl.runtime.ray.cluster", reason="ray is not installed")


def test_a_cluster_that_was_killed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        address = f"127.0.0.1:{gcs.getsockname()[1]}"  # as Ray's folder has it
        monkeypatch.setattr(cluster, "find_bootstrap_address", lambda folder: address)
        assert cluster.cluster_is_running()
    assert not cluster.cluster_is_running()
    monkeypatch.setattr(cluster, "find_bootstrap_address", lambda folder: None)
    assert not cluster.cluster_is_running()


def test_a_cluster_that_is_named_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert cluster.cluster_is_running()


def test_rollout_workers_go_where_cpus_are_free() -> None:
    from agentrl.runtime.ray.rollout_workers import shared_out

    assert sorted(shared_out({"small": 2.0, "large": 6.0}, 4)) == ["large"] * 3 + ["small"]
    assert sorted(shared_out({"a": 2.0, "b": 2.0}, 5)) in (["a"] * 3 + ["b"] * 2, ["a"] * 2 + ["b"] * 3)
    assert sorted(shared_out({"busy": 0.0, "too": 0.0}, 4)) == ["busy"] * 2 + ["too"] * 2
    assert shared_out({"busy": 0.0, "free": 1.0}, 2) == ["free"] * 2


def test_cpus_of_placement_groups_are_not_free_before_rays_view_of_machines_says_so() -> None:
    from agentrl.runtime.ray.rollout_workers import unreserved

    ranks = {"state": "CREATED", "bundles": {0: {"CPU": 1.0}, 1: {"CPU": 1.0}}, "bundles_to_node_id": {0: "a", 1: "b"}}
    over = ranks | {"state": "REMOVED"}
    cpus = {"a": 2.0, "b": 4.0, "gpus only": 0.0}
    late = {"a": {"CPU": 1.0}, "b": {"CPU": 4.0}}
    assert unreserved(cpus, late, [ranks, over]) == {"a": 1.0, "b": 3.0}
    assert unreserved(cpus, late | {"b": {"CPU": 0.5}}, [ranks]) == {"a": 1.0, "b": 0.5}  # another program's, too
    assert unreserved(cpus, {}, []) == {"a": 0.0, "b": 0.0}


def test_ranks_start_without_the_module_of_the_hf_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It imports transformers, as the main thread does meanwhile: one of them would get half a module."""
    from agentrl.config.schema import Config
    from agentrl.runtime.ray import servers

    ranks = SimpleNamespace(begin_join=list)
    config = Config()
    config.rollout.name = "hf"
    for name, result in {"connect": None, "on_gpus": False, "spawn": ranks}.items():
        monkeypatch.setattr(servers, name, lambda *_, result=result, **__: result)
    monkeypatch.setattr(servers, "in_process", pytest.fail)
    assert servers.start_workers(config).servers is None
