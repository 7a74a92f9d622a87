"""The page over HTTP: to this machine only, and nothing but the bundle and answers."""

import json
import math
import urllib.error
import urllib.request

import pytest

from agentrl.core.errors import UserError
from agentrl.http.serving import json_response
from agentrl.view.api import Api
from agentrl.view.server import STATIC, ViewServer


def get(server, path, host=None):
    request = urllib.request.Request(f"{server.url}/{path}", headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_the_bundle_is_served_and_asks_nobody_else(server):
    status, headers, page = get(server, "")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert b"main.js" in page
    for file in STATIC.iterdir():
        assert get(server, file.name)[2] == file.read_bytes()
        if file.suffix != ".svg":  # an SVG names its namespace
            assert b"://" not in file.read_bytes()


def test_answers(server):
    status, _, answer = get(server, "api/trajectories?step=1&limit=1")
    assert (status, json.loads(answer)["total"]) == (200, 6)
    assert get(server, "api/trajectory?step=9&line=0")[0] == 400
    assert json.loads(get(server, "api/trajectory?step=1")[2]) == {"error": "trajectory: line is missing"}
    assert get(server, "api/nonsense")[0] == 404


@pytest.mark.parametrize(
    ("question", "keys"),
    [
        ("runs?last=val/success", ["runs"]),
        ("metrics?names=actor/lr", ["run", "other"]),
        ("metrics?names=actor/lr&runs=other", ["other"]),
        ("meanings", None),
        ("settings?runs=run//other", ["runs", "differing"]),
        ("trajectories?run=other&step=1", ["total", "rows", "outcomes", "finishes", "reward"]),
        ("trajectory?run=other&step=1&line=0", None),
        ("timeline?run=other&step=1", ["kinds", "origin", "rows", "untimed", "figures"]),
        ("match?run=other&step=1&uid=x", None),
    ],
)
def test_every_question_has_an_answer(server, question, keys):
    status, headers, answer = get(server, f"api/{question}")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert keys is None or list(json.loads(answer)) == keys


@pytest.mark.parametrize("name", ["../other", "/etc", "run/../other", "%00", "0", "<script>"])
@pytest.mark.parametrize("question", ["trajectories", "trajectory", "timeline", "match"])
def test_a_run_is_a_name_and_never_a_path(server, question, name):
    status, headers, answer = get(server, f"api/{question}?step=1&line=0&run={name}")
    assert (status, headers["Content-Type"]) == (400, "application/json")
    assert "is not here" in json.loads(answer)["error"]


@pytest.mark.parametrize("path", ["../server.py", "%2e%2e/server.py", "static/", ".index", "style.css/x", "nothing.js"])
def test_nothing_else_is_served(server, path):
    assert get(server, path)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8265", "127.0.0.1.evil.example:80"])
def test_a_page_from_elsewhere_gets_nothing(server, host):
    assert get(server, "api/runs", host)[0] == 403


def test_only_this_machine_can_reach_it(server):
    assert server.listener.getsockname()[0] == "127.0.0.1"


def test_a_port_that_is_taken(server):
    port = server.listener.getsockname()[1]
    with pytest.raises(UserError, match=f"^port {port}: .*choose another"):
        ViewServer(Api([]), port)
    with pytest.raises(UserError, match="^port 99999: .*port must be 0-65535"):
        ViewServer(Api([]), 99999)


def test_numbers_that_json_does_not_have():
    assert json.loads(json_response({"a": [math.nan, 1.5, (math.inf,)]}).body) == {"a": [None, 1.5, [None]]}


def test_prometheus_reads_the_newest_metrics(server, run):
    parser = pytest.importorskip("prometheus_client.parser")
    status, headers, answer = get(server, "metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = list(parser.text_string_to_metric_families(answer.decode()))
    assert len({family.name for family in families}) == len(families)
    found = {(s.name, s.labels["run"]): s.value for family in families for s in family.samples}
    assert found["agentrl_actor_lr", "run"] == 1e-6
    assert found["agentrl_rollout_reward_mean", "run"] == 0.2
