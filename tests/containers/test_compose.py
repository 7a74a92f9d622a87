"""Services as Compose reads them: what a task may have, and what is refused in one line."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.containers import Services
from agentrl.containers.docker.compose import checked
from agentrl.core.errors import UserError


def read(folder: Path, service: dict[str, Any], **more: Any) -> Any:
    document = {"services": {"main": {"image": "x", "networks": {"default": None}}, "db": {"image": "y", **service}}}
    return checked({**document, **more}, Services(folder / "docker-compose.yaml", folder))


def bind(source: Path | str) -> dict[str, Any]:
    return {"volumes": [{"type": "bind", "source": str(source), "target": "/x"}]}


@pytest.mark.prevents("a task's Compose file reaches the host")
@pytest.mark.parametrize(
    ("service", "more", "line"),
    [
        (bind("/etc"), {}, "'/etc' is outside of"),
        (bind("/var/run/docker.sock"), {}, "'/var/run/docker.sock' is outside of"),
        ({"volumes": [{"type": "npipe", "source": "x", "target": "/x"}]}, {}, "db.volumes.npipe is not supported"),
        ({"privileged": True}, {}, "services.db.privileged is not supported; leave the task out"),
        ({"network_mode": "host"}, {}, "db.network_mode is not"),
        ({"devices": [{"source": "/dev/kvm"}]}, {}, "db.devices is not"),
        ({"post_start": [{"command": "x", "privileged": True}]}, {}, "db.post_start is not"),
        ({"deploy": {"resources": {"reservations": {"devices": [{}]}}}}, {}, "db.deploy.resources.devices is not"),
        ({"build": {"context": "/", "dockerfile": "Dockerfile"}}, {}, "'/' is outside of"),
        ({"build": {"context": "https://example.org/x.git"}}, {}, "is outside of"),
        ({"build": {"context": ".", "ssh": ["default"]}}, {}, "db.build.ssh is not"),
        ({}, {"volumes": {"v": {"driver_opts": {"o": "bind", "device": "/", "type": "none"}}}}, "v.driver_opts is not"),
        ({}, {"volumes": {"v": {"external": True, "name": "theirs"}}}, "volumes.v.external is not"),
        ({}, {"networks": {"n": {"external": True}}}, "networks.n.external is not"),
        ({}, {"networks": {"n": {"driver": "macvlan"}}}, "networks.n.driver is not"),
        ({}, {"networks": {"n": {"ipam": {"config": [{"subnet": "10.0.0.0/8"}]}}}}, "networks.n.ipam is not"),
    ],
)
def test_what_reaches_this_machine_is_refused(
    service: dict[str, Any], more: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, service, **more)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ports_names_and_limits(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    service = {
        "ports": [{"target": 80, "published": "80"}],
        "container_name": "old",
        "networks": {"default": None},
        "deploy": {"resources": {"limits": {"memory": "64", "pids": 9}}},
        "depends_on": {"main": {"condition": "service_started"}},
        **bind(tmp_path / "words"),
    }
    own = {"networks": {"default": {"name": "agentrl_default", "ipam": {}}}}
    project = read(tmp_path, service, **own)
    assert project.document["services"]["db"] == {
        "image": "y",
        "networks": {"default": {"aliases": ["old"]}},
        "volumes": [],
        "mem_limit": "64",
        "pids_limit": 9,
        "depends_on": {},
    }
    assert project.copies == (("db", tmp_path / "words", "/x"),)
    assert project.networks == ("default",)
