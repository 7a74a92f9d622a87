"""Addresses at which nothing listens, or something else does."""

import socket
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import agentrl

pytestmark = pytest.mark.integration

SHORT = ("trainer.total_training_steps=2", "trainer.test_freq=-1", "trainer.save_freq=-1", "trainer.device=cpu")


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is taken by a socket that answers nothing."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_collector_that_does_not_listen_costs_one_line(
    overrides: list[str], port: int, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporters try again by themselves, and would write a line each time."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason='pip install "agentrl[otel]"')
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "4")
    done = agentrl("train", *overrides, *SHORT, "trainer.logger=[otel]", f"trainer.default_local_dir={tmp_path}")
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if "port" in line and str(port) in line]
    assert line.startswith("trainer.logger: otel: ")
    assert line.endswith("check the OTEL_* variables, or drop it (shown once)")
    assert "batch" not in (done.stdout + done.stderr).replace(line, "")


def test_sessions_at_a_port_that_is_taken(overrides: list[str], port: int, tmp_path) -> None:
    rows = f"data.train_files=sessions:127.0.0.1:{port}"
    folder = f"trainer.default_local_dir={tmp_path}"
    done = agentrl("train", *overrides, *SHORT, rows, folder, "data.val_files=null", check=False)
    assert done.returncode
    assert f"cannot listen at 127.0.0.1: port {port}: Address already in use" in done.stderr
    assert "--port" not in done.stderr
