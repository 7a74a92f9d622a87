"""The application by itself: what a bug in it, or in the executor, looks like from outside."""

import asyncio
import json
import logging
from contextlib import suppress

from agentrl_sandbox.server.app import make_app
from agentrl_sandbox.server.logs import JsonLines
from agentrl_sandbox.server.service import Service
from agentrl_sandbox.server.settings import Settings


class Broken:
    """An executor with a bug."""

    isolation, report = "none", ()

    async def run(self, job, **_):
        raise KeyError("words of the program")

    def stats(self):
        return {}


async def ask(service, body):
    """Status and JSON of one request; whatever the application raises is for its server to log."""
    sent = [{"type": "http.request", "body": json.dumps(body).encode()}]
    scope = {"type": "http", "method": "POST", "path": "/run_code", "raw_path": b"/run_code", "query_string": b""}
    headers = [(b"host", b"x"), (b"content-type", b"application/json")]
    scope |= {"headers": headers, "client": ("10.0.0.1", 1), "server": ("x", 80)}
    answers = []

    async def receive():
        return sent.pop() if sent else await asyncio.Event().wait()

    async def send(message):
        answers.append(message)

    with suppress(KeyError):
        await make_app(service)(scope, receive, send)
    return answers[0]["status"], json.loads(answers[1]["body"])


async def test_a_bug_is_a_500_that_tells_the_client_nothing(caplog):
    service = Service(Broken(), Settings())
    with caplog.at_level(logging.INFO, "agentrl_sandbox.server"):
        status, reply = await ask(service, {"language": "python", "code": "1"})
    assert (status, reply) == (500, {"detail": "internal error; the server's log says more"})
    [record] = caplog.records
    line = json.loads(JsonLines().format(record))
    assert (line["level"], line["status"], line["path"]) == ("error", 500, "/run_code")
    assert "KeyError" in line["traceback"]
    assert service.pending_bytes == 0
    assert 'requests_total{path="/run_code",status="500"} 1' in service.metrics.text({})


async def test_requests_that_wait_are_bounded_together():
    service = Service(Broken(), Settings(max_pending_mb=0))
    status, reply = await ask(service, {"language": "python", "code": "1"})
    assert (status, "already waiting" in reply["detail"]) == (504, True)
