"""Services outside, each in its offline or local mode, read back from what it wrote."""

import builtins
import json
import struct
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from agentrl.core.errors import UserError
from agentrl.tracking.generations import generations
from agentrl.tracking.loggers import open_loggers
from agentrl.tracking.services.service import RunInfo
from agentrl.trajectory.trajectory import Span

pytestmark = pytest.mark.integration

SERVICES = ("mlflow", "otel", "swanlab", "trackio", "wandb")
CONFIG = "trainer:\n  seed: 7\n"


@pytest.fixture
def table(dialog, plain, decode):
    return [*generations(2, [dialog, plain(0.5), plain(0.25)], 2, decode)]


def two_lives(name, run_dir, table):
    """Steps 1 to 3, then again from the checkpoint of step 2: step 3 was heard already."""
    for steps, resume_step, value in (((1, 2, 3), None, 0.25), ((3, 4), 2, 0.75)):
        loggers = open_loggers([name], RunInfo("p", "e", run_dir, CONFIG, resume_step))
        for step in steps:
            if step == 2:
                loggers.generations(step, table)
            loggers.log(step, {"rollout/success": value, "val/a@b/x": float("nan") if step == 1 else 1.0})
        loggers.close()
        loggers.close()
    assert json.loads((run_dir / f".{name}.json").read_text())["heard"] == 4


SUCCESS = {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.75}


def records(path: Path):
    """The records of a LevelDB log with a header of 7 bytes: what wandb and swanlab write."""
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_wandb(tmp_path, table, monkeypatch):
    wandb = pytest.importorskip("wandb", reason='pip install "agentrl[wandb]"')
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    two_lives("wandb", tmp_path, table)
    wandb.teardown()  # `finish` tells wandb's own process to write, and does not wait for it
    found, seen, ids = {}, set(), set()
    for file in sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb")):
        for raw in records(file):
            record = Record.FromString(raw)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                seen |= {item.key for item in record.run.config.update}
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            if "rollout/success" in items:
                found[items["_step"]] = items["rollout/success"]
            seen |= set(items)
    assert found == SUCCESS
    assert len(ids) == 1
    assert {"trainer", "val/generations", "val/a@b/x"} <= seen
    (written,) = tmp_path.glob("wandb/offline-run-*/files/media/table/val/generations*.json")
    rows = json.loads(written.read_text())
    assert rows["columns"] == ["step", "row", "prompt", "response", "reward", "outcome"]
    assert "What is 17 * 23?" in rows["data"][0][2]
    assert "It is 391 🙂" in rows["data"][0][3]
    assert len(rows["data"]) == 2


@pytest.mark.slow  # ten seconds, for migrations of an empty database
def test_mlflow(tmp_path, table, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason='pip install "agentrl[mlflow]"')
    pytest.importorskip("sqlalchemy", reason='pip install "agentrl[mlflow]"')
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    two_lives("mlflow", tmp_path, table)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
    assert (run.info.run_name, run.info.status) == ("e", "FINISHED")
    assert {m.step: m.value for m in client.get_metric_history(run.info.run_id, "rollout/success")} == SUCCESS
    assert [m.step for m in client.get_metric_history(run.info.run_id, "val/a_b/x")] == [2, 3, 4]
    artifacts = tmp_path / "mlflow" / run.info.run_id / "artifacts"
    assert (artifacts / "config.yaml").read_text() == CONFIG
    rows = json.loads((artifacts / "generations/2.json").read_text())
    assert [row["reward"] for row in rows] == [1.0, 0.5]


def test_swanlab(tmp_path, table, monkeypatch):
    pytest.importorskip("swanlab", reason='pip install "agentrl[swanlab]"')
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record

    monkeypatch.setenv("SWANLAB_MODE", "offline")
    two_lives("swanlab", tmp_path, table)
    files = sorted((tmp_path / "swanlog").glob("run-*/*.swanlab"))
    assert len({file.name for file in files}) == 1
    texts = [str(Record.FromString(raw)) for file in files for raw in records(file)]
    points = [text for text in texts if '"rollout/success"' in text and "step" in text]
    assert [sum(f"{value}" in text for text in points) for value in (0.25, 0.75)] == [3, 1]
    assert any("val/generations" in text for text in texts)
    assert list((tmp_path / "swanlog").glob("run-*/media/echarts/*"))


def test_trackio(tmp_path, table, monkeypatch):
    pytest.importorskip("trackio", reason='pip install "agentrl[trackio]"')
    import trackio.sqlite_storage as storage

    for place in (storage, __import__("trackio.utils", fromlist=["utils"])):
        monkeypatch.setattr(place, "TRACKIO_DIR", tmp_path / "trackio", raising=False)
    two_lives("trackio", tmp_path, table)
    logs = storage.SQLiteStorage.get_logs("p", "e")
    found = {line["step"]: line["rollout/success"] for line in logs if "rollout/success" in line}
    assert found == SUCCESS
    assert any("val/generations" in line for line in logs)


@pytest.mark.parametrize("name", SERVICES)
def test_one_that_is_not_installed_names_the_extra(name, tmp_path, monkeypatch):
    from agentrl.tracking.services import service

    def without(package):
        raise ImportError(package)

    monkeypatch.setattr(service, "import_module", without)
    with pytest.raises(UserError, match=rf'{name} is not installed; run pip install "agentrl\[{name}\]"'):
        open_loggers([name], RunInfo("p", "e", tmp_path))


def test_none_is_imported_unless_named(tmp_path, monkeypatch):
    real = builtins.__import__

    def watched(name, *args, **kwargs):
        assert name.partition(".")[0] not in SERVICES
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", watched)
    open_loggers(["file"], RunInfo("p", "e", tmp_path, CONFIG)).close()


def test_a_service_in_trouble_costs_its_plots_only(tmp_path, monkeypatch, caplog):
    from agentrl.tracking import loggers
    from agentrl.tracking.loggers import Loggers
    from agentrl.tracking.services.service import Service

    class Down(Service):
        name, package, fix = "down", "json", "wait"

        def begin(self, info):
            pass

        def send(self, step, metrics):
            raise ConnectionError("nobody there")

        send_table = send

        def close(self):
            raise ConnectionError("still nobody")

    down = Loggers([Down(RunInfo("p", "e", tmp_path))])
    for step in (1, 2):
        down.log(step, {"x": 1.0})
    down.generations(3, [])
    down.close()
    assert [r.message for r in caplog.records if r.name == loggers.log.name] == [
        "Down: ConnectionError: nobody there; the run continues without it"
    ]


def test_a_service_that_refuses_says_so_in_one_line(tmp_path):
    from agentrl.tracking.services.service import Service

    class Closed(Service):
        name, package, fix = "closed", "json", "log in"

        def begin(self, info):
            raise PermissionError("no\nkey")

        send = send_table = close = begin

    with pytest.raises(UserError, match=r"^trainer.logger: closed: no key; log in, or drop it$"):
        Closed(RunInfo("p", "e", tmp_path))


def test_a_table_shows_prompt_and_response(table, dialog, decode):
    first = table[0]
    cut = dialog.ledgers[0].prompt_length
    assert (first.prompt, first.response) == (decode(dialog.ledgers[0].ids[:cut]), decode(dialog.ledgers[0].ids[cut:]))
    assert (first.step, first.row, first.reward, first.outcome) == (2, "train.jsonl:12", 1.0, "ok")
    assert len(table) == 2


def test_tables_reach_tensorboard(tmp_path, table):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = open_loggers(["tensorboard", "file", "console"], RunInfo("p", "e", tmp_path, CONFIG))
    loggers.generations(2, table)
    loggers.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (event,) = events.Tensors("generations/train.jsonl:12/text_summary")
    assert "It is 391" in event.tensor_proto.string_val[0].decode()


@pytest.fixture
def collector(monkeypatch):
    """Requests that an OTLP/HTTP collector got, by path."""
    found: dict[str, list[bytes]] = {}

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            found.setdefault(self.path, []).append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield found
    server.shutdown()
    server.server_close()


def test_a_collector_gets_metrics_and_the_spans_of_a_rollout(tmp_path, collector, dialog, plain):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason='pip install "agentrl[otel]"')
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    dialog.spans += [Span("score", 104.0, 104.5)]
    loggers = open_loggers(["otel"], RunInfo("p", "e", tmp_path, "model:\n  path: some/model\n"))
    loggers.trajectories(3, [dialog, plain(0.5)])
    loggers.log(3, {"rollout/reward_mean": 0.25})
    loggers.close()
    loggers.close()
    requests = [ExportTraceServiceRequest.FromString(body) for body in collector["/v1/traces"]]
    spans = [s for request in requests for part in request.resource_spans for s in part.scope_spans[0].spans]
    about = {a.key: a.value.string_value for a in requests[0].resource_spans[0].resource.attributes}
    assert (about["service.name"], about["rl.run"]) == ("p", "e")
    root = next(s for s in spans if s.name == "invoke_agent")
    assert root.links[0].span_id in [span.span_id for span in spans if span.name == "rl.step"]
    names = {span.span_id: span.name for span in spans}
    tree = [(s.name, names.get(s.parent_span_id)) for s in spans if s.trace_id == root.trace_id]
    assert tree == [
        ("invoke_agent", None),
        ("rl.turn", "invoke_agent"),
        ("chat", "rl.turn"),
        ("execute_tool", "rl.turn"),
        ("rl.turn", "invoke_agent"),
        ("chat", "rl.turn"),
        ("rl.reward", "invoke_agent"),
    ]
    chat = [{a.key: a.value for a in span.attributes} for span in spans if span.name == "chat"]
    assert [c["gen_ai.request.model"].string_value for c in chat] == ["some/model"] * 2
    made = list(dialog.ledgers[0].turn_ids().values())
    assert [c["gen_ai.usage.output_tokens"].int_value for c in chat] == list(map(len, made))
    assert chat[0]["gen_ai.usage.input_tokens"].int_value == dialog.ledgers[0].prompt_length
    tool = next(s for s in spans if s.name == "execute_tool")
    assert (tool.start_time_unix_nano, tool.end_time_unix_nano) == (101_000_000_000, 101_012_000_000)
    (metrics,) = [ExportMetricsServiceRequest.FromString(body) for body in collector["/v1/metrics"]]
    sent = metrics.resource_metrics[0].scope_metrics[0].metrics
    assert {m.name: m.gauge.data_points[0].as_double or m.gauge.data_points[0].as_int for m in sent} == {
        "rl.rollout.reward_mean": 0.25,
        "rl.step": 3,
    }
