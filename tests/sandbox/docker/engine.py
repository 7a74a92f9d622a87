"""A Docker engine for the tests: the one that runs, or one of our own, started by hand where this is Debian and root.

What it takes is kept under ~/.cache/agentrl/docker, so that only the first run is slow. `Unavailable` says in one line
why there is none.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[3]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / "docker"
PUBLIC_BASE, OWN_BASE = "debian:bookworm-slim", "agentrl-test-base"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy")


class Unavailable(Exception):
    """Why there is no engine."""


def call(*command: str, timeout: float = 60, env: Mapping[str, str] | None = None, cwd: Path = REPO) -> str:
    """Standard output of a command; raises with its last words where it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})}, cwd=cwd
        )
    except FileNotFoundError:
        raise Unavailable(f"no {command[0]} here") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{' '.join(command[:3])}... took more than {timeout:.0f} s") from None
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()
        raise Unavailable(f"{' '.join(command[:3])}...: {words[-1][:300]}")
    return done.stdout


class Engine:
    """`docker`, with an engine that answers."""

    def __init__(self) -> None:
        self.env = {"DOCKER_BUILDKIT": "1", "COMPOSE_ANSI": "never"}
        self.daemon: subprocess.Popen[bytes] | None = None
        if not self._answers():
            self._install()
            self._start()

    @property
    def program(self) -> str:
        """The one that the distribution put beside its engine fits it best."""
        system = "/usr/bin/docker"
        return system if os.path.exists(system) else shutil.which("docker") or system

    def docker(self, *words: str, timeout: float = 60, cwd: Path = REPO) -> str:
        """Standard output of a docker command."""
        return call(self.program, *words, timeout=timeout, env=self.env, cwd=cwd)

    def open(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        """A docker command, with pipes for standard input and output."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen([self.program, *words], env={**os.environ, **self.env}, **(pipes | options))

    def _answers(self) -> bool:
        try:
            self.docker("version", timeout=20)
        except Unavailable:
            return False
        return True

    def _install(self) -> None:
        if shutil.which("dockerd") and os.path.exists("/usr/bin/docker"):
            return
        if os.getuid() != 0 or not shutil.which("apt-get"):
            raise Unavailable("no Docker engine answers, and only root on Debian can install one here")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        call("apt-get", "update", timeout=120, env=quiet)
        packages = ("docker.io", "iptables", "debootstrap", "iproute2")
        call("apt-get", "install", "-y", "--no-install-recommends", *packages, timeout=400, env=quiet)

    def _start(self) -> None:
        if os.getuid() != 0:
            raise Unavailable("no Docker engine answers, and only root can start one")
        CACHE.mkdir(parents=True, exist_ok=True)
        state = Path("/run/agentrl-test-docker")
        state.mkdir(exist_ok=True)
        address = f"unix://{state}/docker.sock"
        self.env["DOCKER_HOST"] = address
        places = {"data-root": CACHE / "data", "exec-root": state / "exec", "pidfile": state / "pid"}
        words = [f"--{name}={place}" for name, place in places.items()]
        with open(state / "log", "wb") as log:
            self.daemon = subprocess.Popen(
                ["dockerd", "--host", address, *words], stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while not self._answers():
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise Unavailable(f"dockerd does not start: {(state / 'log').read_text().splitlines()[-1][:300]}")
            time.sleep(0.5)

    def close(self) -> None:
        """Stop the engine, if it is ours, and with it what runs in it."""
        if self.daemon is not None:
            with contextlib.suppress(Unavailable):
                self.docker("image", "prune", "--force")  # what newer builds have replaced
            self.daemon.terminate()
            try:
                self.daemon.wait(60)
            except subprocess.TimeoutExpired:
                self.daemon.kill()

    def base(self) -> str:
        """A Debian to build on: the public one where it can be had, else one made from Debian's packages."""
        for name in (PUBLIC_BASE, OWN_BASE):
            if self.docker("images", "--quiet", name).strip():
                return name
        try:
            self.docker("pull", "--quiet", PUBLIC_BASE, timeout=120)
            return PUBLIC_BASE
        except Unavailable:
            self._make_base()
            return OWN_BASE

    def _make_base(self) -> None:
        root = CACHE / "base"
        shutil.rmtree(root, ignore_errors=True)
        if not shutil.which("debootstrap"):
            call("apt-get", "install", "-y", "--no-install-recommends", "debootstrap", timeout=200)
        call("debootstrap", "--variant=minbase", "bookworm", str(root), mirror(), timeout=500)
        archive = CACHE / "base.tar"
        call("tar", "-C", str(root), "-cf", str(archive), ".", timeout=120)
        self.docker("import", str(archive), OWN_BASE, timeout=120)
        shutil.rmtree(root)
        archive.unlink()

    def build(self, tier: str, tag: str, secrets: Path) -> None:
        """Build the image; how packages are reached is handed over as secrets, written to the folder `secrets`."""
        words = ["build", "-f", "sandbox/Dockerfile", "-t", tag]
        words += ["--build-arg", f"TIER={tier}", "--build-arg", f"BASE={self.base()}"]
        for name, path in package_settings(secrets).items():
            words += ["--secret", f"id={name},src={path}"]
        self.docker(*words, ".", timeout=1500)

    def compose(self, *words: str, timeout: float = 120) -> str:
        """`docker compose` in sandbox/. Raises Unavailable where there is no version 2 of it."""
        self.have_compose()
        return self.docker("compose", *words, timeout=timeout, cwd=REPO / "sandbox")

    def have_compose(self) -> None:
        """Have version 2 of Compose; `env` says where it is. Raises Unavailable."""
        try:
            self.docker("compose", "version")
        except Unavailable:
            self.env["DOCKER_CONFIG"] = str(_fetch_compose())

    def inspect(self, name: str) -> dict[str, Any]:
        """All about a container."""
        about: list[dict[str, Any]] = json.loads(self.docker("inspect", name))
        return about[0]


def _fetch_compose() -> Path:
    """A folder of docker's settings with Compose 2, which Debian has since its release 13."""
    folder = CACHE / "config"
    if (folder / "cli-plugins" / "docker-compose").exists():
        return folder
    place = CACHE / "apt"
    (place / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (place / "list").write_text(f"deb [signed-by={keys}] {mirror()} trixie main\n")
    own = {"Dir::Etc::sourcelist": place / "list", "Dir::Etc::sourceparts": "-", "Dir::State::lists": place / "lists"}
    options = [word for key, value in {**own, "Dir::Cache": place}.items() for word in ("-o", f"{key}={value}")]
    call("apt-get", *options, "update", timeout=120)
    call("apt-get", *options, "download", "docker-compose", timeout=120, cwd=place)
    (package,) = place.glob("docker-compose_*.deb")
    call("dpkg-deb", "-x", str(package), str(place / "unpacked"))
    (program,) = place.glob("unpacked/**/cli-plugins/docker-compose")
    (folder / "cli-plugins").mkdir(parents=True, exist_ok=True)
    shutil.copy(program, folder / "cli-plugins")
    shutil.rmtree(place)
    return folder


def mirror() -> str:
    """Where this host gets Debian's packages."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for path in files:
        if path.suffix in (".list", ".sources") and path.exists():
            found = re.search(r"^(?:URIs:\s*|deb\s+(?:\[[^]]*\]\s+)?)(https?://\S+)", path.read_text(), re.MULTILINE)
            if found:
                return found[1]
    raise Unavailable("where Debian's packages come from is not to be found in /etc/apt")


def package_settings(folder: Path) -> dict[str, Path]:
    """Secret's name -> file: this host's package index, npm registry and certificates."""
    listed = call(sys.executable, "-m", "pip", "config", "list").splitlines()
    settings = dict(line.split("=", 1) for line in listed if "=" in line)
    chosen = {key.rpartition(".")[2]: value.strip("'") for key, value in settings.items()}
    files = {"pip": folder / "pip.conf"}
    lines = [f"{key} = {chosen[key]}" for key in _PIP_KEYS if key in chosen]
    files["pip"].write_text("\n".join(["[global]", *lines, ""]))
    if shutil.which("npm"):
        files["npm"] = folder / "npmrc"
        files["npm"].write_text(f"registry={call('npm', 'config', 'get', 'registry').strip()}\n")
    if CERTIFICATES.exists():
        files["ca"] = CERTIFICATES
    return files
