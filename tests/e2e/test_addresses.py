"""Addresses and files of other things than the run expects: one line each."""

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


def test_replay_of_a_file_that_is_no_trajectory(overrides: list[str], tmp_path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"a": 1}')
    done = agentrl("rollout", *overrides, "--replay", str(file), check=False)
    assert done.returncode == 2
    assert f"error: {file} is no ATIF trajectory, whose `steps` have `source` and `message`" in done.stderr
