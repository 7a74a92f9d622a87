"""Requests that are wrong, huge, or meant to do harm."""

import json
import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.integration

RUN = {"language": "python", "code": "print(1)"}


def fault(server, body):
    status, reply = server.post("/run_code", body)
    assert status == 422, reply
    return reply["detail"][0]


def test_a_missing_field_and_an_unknown_language_in_pydantics_shape(server):
    missing = fault(server, {"language": "python"})
    assert missing == {"type": "missing", "loc": ["body", "code"], "msg": "Field required", "input": {}}
    unknown = fault(server, {"language": "klingon", "code": ""})
    assert (unknown["type"], unknown["loc"], unknown["input"]) == ("literal_error", ["body", "language"], "klingon")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"a": ' * 5000, b'{"code": "\\ud800", "language": "python"}']
)
def test_what_is_no_request_is_a_422(server, body):
    assert fault(server, body)["loc"][0] == "body"


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", "a\0b", "x" * 300, "/".join("a" * 40), "."])
def test_files_stay_in_the_work_folder(server, path):
    assert fault(server, RUN | {"files": {path: "aGk="}})["loc"][:2] == ["body", "files"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../etc/passwd", "link", "pipe", "folder"])
def test_nothing_but_plain_files_of_the_work_folder_is_fetched(server, path):
    code = "import os; os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe'); os.mkdir('folder')"
    reply = server.python(code, fetch_files=[path])
    assert (reply["status"], reply["files"]) == ("Success", {})


@pytest.mark.parametrize(
    "extra",
    [
        {"files": {"a": "not base64!"}},
        {"files": {str(number): None for number in range(1001)}},
        {"tests": []},
        {"tests": [{}] * 1001},
        {"fetch_files": ["a"] * 1001},
        {"run_timeout": 1e9},
        {"run_timeout": -1},
        {"compile_timeout": "NaN"},
        {"memory_limit_MB": 1.5},
        {"limits": {"processes": 1_000_000}},
        {"stdin": 5},
    ],
)
def test_fields_have_bounds(server, extra):
    fault(server, RUN | extra)


def test_more_memory_than_the_server_gives_is_cut_to_that(server):
    assert server.python("print(1)", memory_limit_MB=10**15)["status"] == "Success"
    assert server.python("print(1)", memory_limit_MB=0)["status"] == "Success"


def test_only_json_is_taken_so_that_a_web_page_cannot_send_code(server):
    server_headers, server.headers = server.headers, {"content-type": "text/plain"}
    try:
        assert server.post("/run_code", RUN)[0] == 415
    finally:
        server.headers = server_headers


def test_many_runs_share_the_room_of_one_reply(server):
    reply = server.python("print('x' * 1_000_000)", tests=[{}] * 64)
    assert all(run["truncated"] for run in reply["tests"])
    assert sum(len(run["stdout"]) for run in reply["tests"]) <= 32 << 20
    reply = server.python("print('x' * 1_000_000)", tests=[{}] * 8)
    assert not any(run["truncated"] for run in reply["tests"])


def raw(server, text: bytes) -> bytes:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), 30) as connection:
        connection.sendall(text)
        answer = b""
        while b"}" not in answer and not answer.endswith(b"received.") and (more := connection.recv(1 << 16)):
            answer += more
        return answer


def test_a_length_that_is_too_large_is_refused_before_it_is_read(server):
    head = (
        b"POST /run_code HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n"
    )
    answer = raw(server, head)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"--max-body-mb" in answer


def test_chunks_that_add_up_to_too_much_are_refused(start):
    server = start("--max-body-mb", "1")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    head = b"POST /run_code HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    assert raw(server, head + chunk * 17).startswith(b"HTTP/1.1 413")
    assert server.get("/health")[1]["load"]["pending_bytes"] == 0


def test_what_is_no_http_at_all(server):
    assert raw(server, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert server.get("/v1/ping")[0] == 200


def test_a_client_that_hangs_up_stops_its_program(start):
    server = start()
    body = json.dumps(RUN | {"code": "while True: pass", "run_timeout": 60}).encode()
    address = urlsplit(server.url)
    head = (
        f"POST /run_code HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + body)
        server.wait_for(running=1)
    server.wait_for(running=0)


def test_the_log_holds_no_code_and_every_line_is_json(start):
    server = start()
    server.python("print('s3cret')", stdin="s3cret")
    server.post("/run_code", RUN | {"language": "s3cret"})
    server.post("/s3cret", {})
    server.stop()
    text = server.log.read_text()
    assert "s3cret" not in text
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert [(line["path"], line["status"]) for line in lines] == [
        ("/run_code", 200),
        ("/run_code", 422),
        ("other", 404),
    ]
    assert (lines[0]["language"], lines[0]["verdict"]) == ("python", "Success")


def test_the_log_holds_the_request_where_asked(start):
    server = start("--log-code")
    server.python("print('shown')")
    server.stop()
    assert "print('shown')" in server.log.read_text()


@pytest.mark.parametrize("part", [b"x-a: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=["many headers", "one header"])
def test_a_head_without_end_is_cut_off(start, part):
    server = start()

    def memory():
        return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096

    before = memory()
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), 30) as connection:
        connection.sendall(b"POST /run_code HTTP/1.1\r\nx-b: ")
        with pytest.raises(OSError, match=r"."):
            send_for_long(connection, part * 100)
    assert memory() - before < 10_000_000
    assert server.get("/v1/ping")[0] == 200


def send_for_long(connection, part):
    for _ in range(1000):
        connection.sendall(part)


def test_other_methods_and_paths_are_small_answers(server):
    for line in (b"BREW / HTTP/1.1", b"PUT /run_code HTTP/1.1", b"POST /%ff HTTP/1.1", b"GET /\xff HTTP/1.1"):
        assert re.match(rb"HTTP/1.1 4(0[045]|15)", raw(server, line + b"\r\nhost: x\r\nconnection: close\r\n\r\n"))
