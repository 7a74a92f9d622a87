"""A small server that follows the protocol of NeMo Gym's resource servers: see test_real_servers.py for real ones."""

import json
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import Any

import yaml

Json = dict[str, Any]


def asks(*fields: str) -> Json:
    """An operation that asks for fields."""
    schema = {"$ref": f"#/components/schemas/{'_'.join(fields) or 'Any'}"}
    return {"post": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}


class Small:
    """Counts per session; `verify` compares the count with the row's. Or, with `steps`, asks for a number."""

    def __init__(self, *, steps: bool = False) -> None:
        self.counts: dict[str, int] = {}
        self.verified: list[Json] = []
        self.asked: list[str] = []
        self.numbers = count()
        begun = ("/reset", "/step") if steps else ("/seed_session", "/verify", "/add", "/value", "/late", "/broken")
        self.paths = {path: asks() for path in begun}
        if not steps:
            self.paths["/verify"] = asks("responses_create_params", "response", "wanted")
        named = {"Any": {}, "responses_create_params_response_wanted": {"required": ["response", "wanted"]}}
        self.about: Json = {"paths": self.paths, "components": {"schemas": named}}

    def get(self, path: str) -> Any:
        """The answer to a GET."""
        return self.about

    def post(self, path: str, body: Json, session: str) -> tuple[int, Any]:
        """Status and answer."""
        self.asked.append(path)
        match path:
            case "/seed_session":
                self.counts[session] = body.get("start", 0)
                return 200, {}
            case "/add" if "n" not in body:
                return 422, {"detail": [{"loc": ["body", "n"], "msg": "Field required"}]}
            case "/add":
                time.sleep(0.05 if body["n"] == 1 else 0)  # calls at once would overtake each other
                self.counts[session] = self.counts[session] * 10 + body["n"]
                return 200, {"ok": True}
            case "/value":
                return 200, {"count": self.counts[session]}
            case "/late":
                time.sleep(2)
                return 200, {}
            case "/verify" if "response" not in body:
                missing = [{"loc": ["body", "response"], "msg": "Field required"}]
                wrong = [{"loc": ["body", "wanted"], "msg": "Input should be a number"}]
                return 422, {"detail": missing + wrong * isinstance(body["wanted"], str)}
            case "/verify":
                self.verified.append(body)
                right = self.counts[session] == body["wanted"]
                return 200, {**body, "reward": float(right), "count": self.counts[session], "exact": right}
            case "/reset":
                self.counts[session] = 3
                return 200, {"observation": "Guess.", "info": {}}
            case "/step":
                return 200, self.step(body, session)
        return 500, "it broke"

    def step(self, body: Json, session: str) -> Json:
        """A guess, or a call of the tool `peek`."""
        self.verified.append(body)
        self.counts[session] -= 1
        calls = [item for item in body["response"]["output"] if item["type"] == "function_call"]
        if calls:
            told = [{"call_id": call["call_id"], "output": "it is 7"} for call in calls]
            return {"observation": None, "reward": -0.25, "info": {"tool_outputs": told}}
        right = body["response"]["output"][-1]["content"][0]["text"] == "7"
        left = self.counts[session]
        return {"observation": f"No. {left} left.", "reward": float(right), "terminated": right, "truncated": not left}


class Head(Small):
    """Names the servers of a run, by their addresses."""

    def __init__(self, **urls: str) -> None:
        super().__init__()
        self.about = {"paths": {"/global_config_dict_yaml": {}, "/server_instances": {}}}
        self.config: Json = {"policy_model": {"responses_api_models": {"m": {"port": 1}}}}
        for name, url in urls.items():
            host, port = url.removeprefix("http://").split(":")
            self.config[name] = {"resources_servers": {"s": {"host": host, "port": int(port)}}}
            self.config[f"{name}_agent"] = {"responses_api_agents": {"a": {"resources_server": {"name": name}}}}

    def get(self, path: str) -> Any:
        return yaml.safe_dump(self.config) if path == "/global_config_dict_yaml" else self.about


def served(small: Small) -> tuple[str, ThreadingHTTPServer]:
    """The address of a server that runs in threads."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(200, small.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            session = self.headers.get("cookie") or f"session={next(small.numbers)}"
            self.answer(*small.post(self.path, body, session), session)

        def answer(self, status: int, value: Any, cookie: str = "") -> None:
            written = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(written)))
            if cookie:
                self.send_header("set-cookie", f"{cookie}; path=/; httponly; samesite=lax")
            with suppress(ConnectionError):  # a client that stopped waiting
                self.end_headers()
                self.wfile.write(written)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}", server
