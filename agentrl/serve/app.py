"""The addresses of Tinker's API, keys, and errors in its form."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from agentrl.core.errors import UserError
from agentrl.gateway.bodies import parse
from agentrl.http.refusals import Refused
from agentrl.http.serving import BodyReader, Guarded, json_response
from agentrl.serve.operations import checkpoint_folder, checkpoints, delete_checkpoint, facts_of, set_ttl
from agentrl.serve.sampling import Samples
from agentrl.serve.service import Service
from agentrl.serve.wire import JSON, PROTOBUF, field, sample_message

STATUS = {
    "key": 401,
    "missing": 404,
    "lost": 410,
    "large": 413,
    "slow": 408,
    "busy": 429,
    "overloaded": 503,
    "internal": 500,
}
POLL_SECONDS = 25.0
"""Seconds that a request for an answer may take."""
COMMANDS = ("forward_backward", "forward", "optim_step", "save_weights", "save_weights_for_sampler", "unload_model")
STATIC = {
    "client/config": {"pjwt_auth_enabled": False},
    "client/dynamic_config": {"refresh_interval_sec": 300, "sample_cancel_enabled": False},
    "telemetry": {"status": "accepted"},
    "healthz": {"status": "ok"},
}


class Call:
    """A request: the key's owner, and the body."""

    def __init__(self, owner: str, http: Request, raw: bytes) -> None:
        self.owner, self.http, self.raw = owner, http, raw
        self.form = http.headers.get("content-type", JSON).partition(";")[0]
        self.body: Mapping[str, Any] = parse(raw) if raw and self.form != PROTOBUF else {}


class Api:
    """Answers requests."""

    def __init__(self, service: Service, samples: Samples, keys: Mapping[str, str]) -> None:
        """`keys`: owner by the hash of a key; without any, each well-formed key is an owner."""
        self.service, self.samples, self.keys, self.bodies = service, samples, keys, BodyReader()

    def app(self, host: str) -> ASGIApp:
        """The application, served at an address."""
        posts: dict[str, Callable[[Call], Any]] = {
            "create_session": lambda call: self.service.create_session(call.owner),
            "session_heartbeat": self.heartbeat,
            "sessions/{session}/finish": self.finish,
            "create_model": self.create,
            "load_weights": self.load,
            "get_info": self.info,
            "weights_info": self.weights_info,
            "create_sampling_session": lambda call: self.samples.create(call.owner, call.body),
            "asample": lambda call: self.samples.submit(call.owner, call.body),
            "retrieve_future": self.retrieve,
        }
        posts |= dict.fromkeys(COMMANDS, self.command)
        posts |= {name: lambda call, answer=answer: answer for name, answer in STATIC.items()}
        gets = {
            "healthz": lambda call: STATIC["healthz"],
            "get_server_capabilities": self.capabilities,
            "samplers/{sampler}": self.sampler,
            "training_runs": self.training_runs,
            "training_runs/{run}": self.training_run,
            "training_runs/{run}/checkpoints": self.checkpoints,
            "checkpoints": self.checkpoints,
        }
        routes = [Route(f"/api/v1/{path}", self.endpoint(do), methods=["POST"]) for path, do in posts.items()]
        routes += [Route(f"/api/v1/{path}", self.endpoint(do), methods=["GET"]) for path, do in gets.items()]
        checkpoint = "/api/v1/training_runs/{run}/checkpoints/{kind}/{name}"
        routes.append(Route(checkpoint, self.endpoint(self.delete), methods=["DELETE"]))
        routes.append(Route(f"{checkpoint}/ttl", self.endpoint(self.ttl), methods=["PUT"]))
        routes.append(Route("/{rest:path}", self.endpoint(self.nothing), methods=["GET", "POST", "PUT", "DELETE"]))
        return Guarded(
            Router(routes),
            lambda scope, status, reason: json_response({"detail": reason}, status),
            host=host,
            guarded=True,
        )

    def endpoint(self, do: Callable[[Call], Any]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(http: Request) -> Response:
            try:
                owner, raw = self.owner(http.headers.get("x-api-key", "")), await self.bodies.read(http)
                found = do(Call(owner, http, raw))
                found = await found if asyncio.iscoroutine(found) else found
                return found if isinstance(found, Response) else json_response(found)
            except (Refused, UserError) as error:
                return json_response({"detail": str(error)}, STATUS.get(getattr(error, "fault", ""), 400))
            except ClientDisconnect:
                return Response(status_code=499)

        return answer

    def owner(self, key: str) -> str:
        """The owner of a key. Raises Refused."""
        digest = hashlib.sha256(key.encode()).hexdigest()
        if not key.startswith(("tml-", "eyJ")) or (self.keys and digest not in self.keys):
            raise Refused(
                "X-API-Key: no key of this server; set TINKER_API_KEY to one of `agentrl serve keys add NAME`", "key"
            )
        return self.keys.get(digest, digest[:12])

    def heartbeat(self, call: Call) -> Any:
        self.service.session(field(call.body, "session_id", str), call.owner)
        return {"type": "session_heartbeat"}

    def finish(self, call: Call) -> Any:
        if call.http.path_params["session"] in self.service.sessions:
            self.service.session(call.http.path_params["session"], call.owner)
            self.service.finish(call.http.path_params["session"])
        return {}

    async def create(self, call: Call) -> Any:
        return await self.service.create(call.owner, "create_model", call.raw, call.body)

    async def load(self, call: Call) -> Any:
        if "model_id" in call.body:
            return await self.service.command(call.owner, "load_weights", JSON, call.raw)
        return await self.service.create(call.owner, "load_weights", call.raw, call.body)

    async def command(self, call: Call) -> Any:
        return await self.service.command(call.owner, call.http.url.path.rpartition("/")[2], call.form, call.raw)

    async def retrieve(self, call: Call) -> Response:
        name = field(call.body, "request_id", str)
        future = self.samples.answers.get(name)
        if future is None:
            run, _, seq = name.rpartition("/")
            command = self.service.run(run, call.owner).commands.get(int(seq) if seq.isdecimal() else -1)
            if command is None:
                raise Refused(f"the answer {name[:100]!r} is no longer there: ask anew", "lost")
            future = command.answer
        await asyncio.wait([future], timeout=POLL_SECONDS)
        if not future.done():
            return json_response({"type": "try_again", "request_id": name, "queue_state": "active"}, 408)
        answer = future.result()
        if isinstance(answer, dict) and "sequences" in answer and PROTOBUF in call.http.headers.get("accept", ""):
            answer = sample_message(answer)
        return json_response(answer) if isinstance(answer, dict) else Response(answer, media_type=PROTOBUF)

    def info(self, call: Call) -> Any:
        run = self.service.run(field(call.body, "model_id", str), call.owner)
        base = self.service.base.path
        data = {"model_name": base, "tokenizer_id": base}
        facts = {"model_data": data, "model_name": base, "is_lora": run.shape.rank > 0, "lora_rank": run.shape.rank}
        return {"type": "get_info", "model_id": run.id} | facts

    def weights_info(self, call: Call) -> Any:
        folder = checkpoint_folder(self.service.folder, field(call.body, "tinker_path", str), call.owner)
        return self._shape(facts_of(folder.parents[1])["shape"])

    def _shape(self, shape: Mapping[str, Any]) -> dict[str, Any]:
        parts = {"train_attn": "attention", "train_mlp": "mlp", "train_unembed": "unembed"}
        facts = {theirs: shape[ours] for theirs, ours in parts.items()}
        return {"base_model": self.service.base.path, "is_lora": shape["rank"] > 0, "lora_rank": shape["rank"]} | facts

    def capabilities(self, call: Call) -> Any:
        base = self.service.base
        return {"supported_models": [{"model_name": base.path, "max_context_length": base.max_tokens}]}

    def sampler(self, call: Call) -> Any:
        name = call.http.path_params["sampler"]
        path = self.samples.weights(name, call.owner)[0]
        return {"sampler_id": name, "base_model": self.service.base.path, "model_path": path or None}

    def _run_facts(self, folder: Path, owner: str) -> dict[str, Any]:
        facts = facts_of(folder)
        time = {"training_run_id": folder.name, "model_owner": owner, "last_request_time": facts["time"]}
        return time | self._shape(facts["shape"]) | {"user_metadata": facts["user_metadata"]}

    def _folders(self, call: Call) -> list[Path]:
        """Folders of the owner's training runs, or of the one that the address names."""
        name = call.http.path_params.get("run", "*")
        found = [file.parent for file in self.service.folder.glob("*/run.json") if name in ("*", file.parent.name)]
        owned = [folder for folder in found if facts_of(folder)["owner"] == call.owner]
        if name != "*" and not owned:
            raise Refused(f"training run {name[:100]!r} is unknown", "missing")
        return owned

    def training_runs(self, call: Call) -> Any:
        runs = [self._run_facts(folder, call.owner) for folder in self._folders(call)]
        return {"training_runs": runs, "cursor": {"offset": 0, "limit": len(runs), "total_count": len(runs)}}

    def training_run(self, call: Call) -> Any:
        return self._run_facts(self._folders(call)[0], call.owner)

    def checkpoints(self, call: Call) -> Any:
        return {"checkpoints": [note for folder in self._folders(call) for note in checkpoints(folder)]}

    def _named(self, call: Call) -> Path:
        path = "tinker://{run}/{kind}/{name}".format(**call.http.path_params)
        return checkpoint_folder(self.service.folder, path, call.owner)

    def delete(self, call: Call) -> Any:
        delete_checkpoint(self._named(call))
        return {}

    def ttl(self, call: Call) -> Any:
        return set_ttl(self._named(call), field(call.body, "ttl_seconds", int, None))

    def nothing(self, call: Call) -> Any:
        raise Refused(f"{call.http.method} {call.http.url.path} is not served: see docs/serve.md", "missing")
