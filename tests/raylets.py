"""Clusters of `ray start`: several nodes on this machine, or one on each of the machines of namespaces."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agentrl.engines.servers.process import free_port
from tests.machines import Machine

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
"""All members of a cluster state it, and what joins them."""


class Cluster:
    """Nodes, every one a process of ours."""

    def __init__(self, folder: Path, machines: Sequence[Machine] = ()) -> None:
        """Each node is on the next of `machines`, further ones on the last; without any, all are on this one."""
        self.host, self.port = machines[0].address if machines else "127.0.0.1", free_port()
        self.address = f"{self.host}:{self.port}"
        self.folder, self.machines = folder, machines
        self.nodes: list[subprocess.Popen[bytes]] = []

    def node(self, *where: str, cpus: int = 2, **env: str) -> "subprocess.Popen[bytes]":
        """Start one; what runs there has `env`."""
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--num-cpus={cpus}", *where]
        log = (self.folder / f"node-{len(self.nodes)}.log").open("wb")
        env = os.environ | TOKEN | {"RAY_worker_niceness": "0"} | env
        if self.machines:
            ray = self.machines[min(len(self.nodes), len(self.machines) - 1)].words(*ray)
        node = subprocess.Popen(ray, stdout=log, stderr=log, env=env, start_new_session=True)
        self.nodes.append(node)
        return node

    def head(self, cpus: int = 2, **env: str) -> None:
        """Start the head; returns when it can be spoken to."""
        self.node("--head", f"--port={self.port}", "--include-dashboard=false", cpus=cpus, **env)
        self.started()

    def join(self, cpus: int = 2, **env: str) -> None:
        """Start a further node; returns when the cluster has it."""
        self.node(f"--address={self.address}", cpus=cpus, **env)
        self.started()

    def started(self) -> None:
        """Wait for the newest node."""
        log = self.folder / f"node-{len(self.nodes) - 1}.log"
        while "Ray runtime started" not in log.read_text():
            assert self.nodes[-1].poll() is None, log.read_text()
            time.sleep(0.1)

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.send_signal(signal.SIGTERM)
        for node in self.nodes:
            node.wait(60)
        left = Path("/tmp/ray/ray_current_cluster")  # or whoever comes next looks for it in vain
        if left.exists() and left.read_text().endswith(str(self.port)):
            left.unlink()
