"""Order, repeats, restarts, keys and hostile bodies, over HTTP and fakes in memory."""

import asyncio
import io
import json
import tarfile
import time
import weakref
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch

from agentrl.cli import serve as serve_command
from agentrl.cli.main import main
from agentrl.config.schema import Config
from agentrl.core.errors import InfraError, UserError
from agentrl.http import serving as serving_module
from agentrl.serve import downloads, wire
from agentrl.serve import runs as runs_module
from agentrl.serve import service as service_module
from agentrl.serve.app import App
from agentrl.serve.service import Service
from agentrl.serve.wire import MESSAGES, PROTOBUF
from agentrl.training.checkpoint.restarts import RanksFailed, WorkerDied
from agentrl.training.checkpoint.run_lock import locked
from agentrl.trajectory.medium import Medium
from tests.serve.fakes import FakeSamplers, FakeTrainer

MODEL = Path("/models/of/tiny")


class Client:
    """One key's requests."""

    def __init__(self, http, key="tml-a"):
        self.http, self.headers = http, {"x-api-key": key}

    async def post(self, path, body=None, status=200, verb="POST", accept="application/json"):
        headers = self.headers | {"accept": accept}
        raw = isinstance(body, bytes)
        given = {"content": body} if raw else {"json": body or {}}
        if raw:
            headers["content-type"] = PROTOBUF
        answer = await self.http.request(verb, f"/api/v1/{path}", headers=headers, **given)
        assert answer.status_code == status, answer.text
        return answer.content if answer.headers["content-type"] == PROTOBUF else answer.json()

    async def open_session(self):
        self.session = (await self.post("create_session"))["session_id"]
        return self

    async def open(self):
        await self.open_session()
        body = {"session_id": self.session, "model_seq_id": 0, "base_model": str(MODEL), "lora_config": {"rank": 4}}
        answer = await self.post("create_model", body)
        self.model = (await self.result(answer))["model_id"]
        assert self.model == f"{self.session}:train:0"
        return self

    async def second_model(self, status):
        body = {"session_id": self.session, "model_seq_id": 1, "base_model": str(MODEL)}
        return await self.post("create_model", body, status)

    async def result(self, submitted, accept="application/json"):
        return await self.post("retrieve_future", {"request_id": submitted["request_id"]}, accept=accept)

    async def forward(self, seq, *ids, loss="cross_entropy", **more):
        return await self.post("forward_backward", pass_body(self.model, seq, ids, loss, **more))

    async def step(self, seq):
        return await self.post("optim_step", {"model_id": self.model, "seq_id": seq, "adam_params": {}})


def pass_body(model, seq, ids, loss="cross_entropy", **more):
    message = MESSAGES["ForwardBackwardRequest"](model_id=model, seq_id=seq, loss_fn=loss, **more)
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.array(ids, "<i4").tobytes()
    datum.loss_fn_inputs["target_tokens"].dense = np.array(ids, "<i8").tobytes()
    datum.loss_fn_inputs["target_tokens"].dtype = 2
    return message.SerializeToString()


@asynccontextmanager
async def serving(folder, trainer=None, samplers=None, token="", model=MODEL, alpha=32.0):
    service = Service(trainer or FakeTrainer(), samplers or FakeSamplers(), model, alpha, (2,), folder)
    await service.start()
    try:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(App(service, token)), base_url="http://127.0.0.1"
        ) as http:
            yield http
    finally:
        await service.close()


async def test_commands_that_come_out_of_order_run_in_order(tmp_path):
    trainer = FakeTrainer()
    async with serving(tmp_path, trainer) as http:
        client = await Client(http).open()
        third = await client.step(3)
        second = await client.forward(2, 10)
        assert trainer.calls[1:] == []
        await client.forward(1, 1, 2)
        assert (await client.result(third))["metrics"]["weights:mean"] == 13.0
        message = MESSAGES["ForwardBackwardOutput"].FromString(await client.result(second, PROTOBUF))
        assert message.metrics == {"loss:sum": 10.0}
        assert np.frombuffer(message.loss_fn_outputs[0].fields["logprobs"].data, "<f4").tolist() == [-0.5]


async def test_a_repeated_command_runs_once(tmp_path):
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        first, again = await client.forward(1, 5), await client.forward(1, 5)
        assert first == again
        await client.step(2)
        step = await client.step(2)
        assert (await client.result(step))["metrics"]["weights:mean"] == 5.0
        assert await client.result(step) == await client.result(step)


async def test_a_refused_command_counts_and_changes_nothing(tmp_path):
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        answer = await client.result(await client.forward(1, 5, loss="stable_reinforce"))
        assert answer == {"error": "loss stable_reinforce is not served: use importance_sampling", "category": "user"}
        await client.forward(2, 7)
        assert (await client.result(await client.step(3)))["metrics"]["weights:mean"] == 7.0


@pytest.mark.parametrize("snapshot_every", [1, 2, 100])
async def test_a_restart_goes_on_from_what_was_acknowledged(tmp_path, monkeypatch, snapshot_every):
    monkeypatch.setattr(runs_module, "SNAPSHOT_STEPS", snapshot_every)
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        for seq in range(1, 9, 2):
            await client.forward(seq, seq)
            done = await client.result(last := await client.step(seq + 1))
        await client.result(await client.forward(9, 100))
    trainer = FakeTrainer()
    async with serving(tmp_path, trainer) as http:
        client.http = http
        assert await client.result(last) == done
        assert (await client.step(8))["request_id"] == last["request_id"]
        expected = 0
        for seq in (1, 3, 5, 7, 100):
            expected = expected * 2 + seq
        assert (await client.result(await client.step(10)))["metrics"] == {"weights:mean": expected, "steps:max": 5}
        assert len([call for call in trainer.calls if call[0] == "step"]) <= snapshot_every + 1


async def test_commands_that_have_not_run_run_after_the_restart(tmp_path):
    async with serving(tmp_path, FakeTrainer(delay=0.05)) as http:
        client = await Client(http).open()
        waiting = [await client.forward(seq, seq) for seq in range(1, 6)]
        step = await client.step(6)
    async with serving(tmp_path) as http:
        client.http = http
        assert (await client.result(step))["metrics"]["weights:mean"] == 15.0
        assert (await client.result(waiting[0]))["metrics"] == {"loss:sum": 1.0}


async def test_models_of_another_base_do_not_go_on(tmp_path):
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        saved = {"model_id": client.model, "path": "one", "seq_id": 1}
        state = (await client.result(await client.post("save_weights", saved)))["path"]
        saved |= {"path": "two", "seq_id": 2}
        weights = (await client.result(await client.post("save_weights_for_sampler", saved)))["path"]
    for other in ({"model": Path("/models/of/other")}, {"alpha": 16.0}):
        with pytest.raises(UserError, match="and the server has .*: serve it as before"):
            async with serving(tmp_path, **other):
                pass
    async with serving(tmp_path) as http:
        client.http = http
        await client.post(f"sessions/{client.session}/finish")
        while (tmp_path / client.model / "commands").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with serving(tmp_path, model=Path("/models/of/other")) as http:
        client = await Client(http).open_session()
        body = {"session_id": client.session, "model_seq_id": 1, "base_model": "/models/of/other"}
        client.model = (await client.post("create_model", body))["model_id"]
        into = {"model_id": client.model, "path": state, "seq_id": 1}
        assert "needs base_model" in (await client.result(await client.post("load_weights", into)))["error"]
        loaded = {"session_id": client.session, "model_seq_id": 0, "path": state, "optimizer": True}
        assert "needs base_model=/models/of/tiny, and" in (await client.post("load_weights", loaded, 400))["detail"]
        sampled = {"session_id": client.session, "sampling_session_seq_id": 0, "model_path": weights}
        assert "needs base_model" in (await client.post("create_sampling_session", sampled, 400))["detail"]


async def test_adapters_are_drawn_with_the_seed_of_their_client(tmp_path):
    trainer = FakeTrainer()
    async with serving(tmp_path, trainer) as http:
        client = await Client(http).open_session()
        body = {"session_id": client.session, "base_model": "tiny"}
        for number, given in enumerate(({}, {"seed": None}, {"seed": 7})):
            await client.result(
                await client.post("create_model", body | {"model_seq_id": number, "lora_config": given})
            )
        assert [shape.seed for _, _, shape in trainer.calls] == [0, 0, 7]
        refused = await client.post("create_model", body | {"model_seq_id": 3, "lora_config": {"seed": 0.5}}, 400)
        assert refused["detail"] == "seed: 0.5: give a value of type int"


async def test_numbers_that_json_lacks(tmp_path):
    trainer = FakeTrainer()
    trainer.optim_step = lambda model, adam: {"grad_norm:mean": float("nan"), "skipped_steps:max": 1.0}
    async with serving(tmp_path, trainer) as http:
        client = await Client(http).open()
        assert (await client.result(await client.step(1)))["metrics"] == {"skipped_steps:max": 1.0}
        step = {"model_id": client.model, "seq_id": 2, "adam_params": {"learning_rate": None}}
        refused = await client.result(await client.post("optim_step", step))
        assert refused == {"error": "learning_rate: missing: give a value of type float", "category": "user"}
        step |= {"seq_id": 3, "adam_params": {"learning_rate": 10**400}}
        assert (await client.result(await client.post("optim_step", step)))["category"] == "user"


async def test_refused_commands_count(tmp_path, monkeypatch):
    monkeypatch.setattr(serving_module, "MAX_BODY_BYTES", 2000)
    trainer = FakeTrainer()
    async with serving(tmp_path, trainer) as http:
        client = await Client(http).open()
        last = await client.step(5)
        await client.post("forward_backward", pass_body(client.model, 1, range(2000)), 413)
        unserved = {"model_id": client.model, "path": "x", "seq_id": 2}
        await Client(http, "tml-b").post("create_custom_loss", unserved | {"seq_id": 4}, 404)
        await client.post("create_custom_loss", unserved, 404)
        await client.post("forward_backward", {"model_id": client.model, "seq_id": 3, "x": "\x00" * 2000}, 413)
        await client.forward(4, 6)
        assert (await client.result(last))["metrics"]["weights:mean"] == 6.0
        refused = await client.result({"request_id": f"{client.model}/2"})
        assert refused["category"] == "user"
        assert "create_custom_loss is not served" in refused["error"]
    async with serving(tmp_path) as http:
        client.http = http
        assert (await client.result(await client.step(6)))["metrics"]["steps:max"] == 2


@pytest.mark.parametrize("middle", [2, 20], ids=["which exceeds the limit", "after much more"])
async def test_a_large_body_counts_where_its_number_is_at_its_end(tmp_path, monkeypatch, middle):
    monkeypatch.setattr(serving_module, "MAX_BODY_BYTES", 2000)
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        step = await client.step(2)

        async def parts():
            for part in (
                b'{"forward_backward_input": "',
                *[b"x" * 900] * middle,
                f'", "model_id": "{client.model}",'.encode(),
            ):
                yield part
            yield b' "seq_id": 1}' + b" " * 200

        sizes, add = [], serving_module.BodyReader._add
        monkeypatch.setattr(
            serving_module.BodyReader, "_add", lambda own, body, *more: (add(own, body, *more), sizes.append(len(body)))
        )
        answer = await http.post("/api/v1/forward_backward", headers=client.headers, content=parts())
        assert answer.status_code == 413
        assert max(sizes[3:]) <= 2 * serving_module.END_BYTES, "what is too large is not in memory"
        assert (await client.result(step))["metrics"]["steps:max"] == 1


async def test_other_optimizers_are_refused(tmp_path):
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        body = {"session_id": client.session, "model_seq_id": 1, "base_model": str(MODEL)}
        refused = await client.post("create_model", body | {"optimizer_config": {"type": "dimuon", "version": 1}}, 400)
        assert refused["detail"] == "the optimizer 'dimuon' is not served: use adamw"
        await client.post("create_model", body | {"optimizer_config": {"type": "adamw"}})


async def test_the_last_log_probs_of_a_prompt(tmp_path):
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        base = {"session_id": client.session, "sampling_session_seq_id": 1, "base_model": str(MODEL)}
        sampler = (await client.post("create_sampling_session", base))["sampling_session_id"]
        body = {
            "sampling_session_id": sampler,
            "prompt": {"chunks": [{"tokens": [1, 2, 3, 4]}]},
            "prompt_logprobs": True,
        }
        for seq, (last, known) in enumerate(((None, 3), (2, 2), (1, 1), (0, 0), (99, 3), (-5, 0))):
            asked = await client.post("asample", body | {"seq_id": seq, "prompt_logprobs_last_n": last})
            found = (await client.result(asked))["prompt_logprobs"]
            assert found == [None] * (4 - known) + [-0.75] * known


async def test_checkpoints_are_immutable_and_belong_to_their_key(tmp_path):
    trainer = FakeTrainer()
    async with serving(tmp_path, trainer) as http:
        client, other = await Client(http).open(), await Client(http, "tml-b").open()
        body = {"model_id": client.model, "path": "one"}
        await client.forward(1, 4)
        await client.step(2)
        path = (await client.result(await client.post("save_weights", body | {"seq_id": 3})))["path"]
        assert path == f"tinker://{client.model}/weights/one"
        again = await client.result(await client.post("save_weights", body | {"seq_id": 4}))
        assert "is there already" in again["error"]
        bad = await client.result(await client.post("save_weights", body | {"seq_id": 5, "path": "../../x"}))
        assert bad["category"] == "user"
        loaded = {"session_id": client.session, "model_seq_id": 1, "path": path, "optimizer": True}
        copy = await client.result(await client.post("load_weights", loaded))
        client.model = copy["model_id"]
        assert (await client.result(await client.step(1)))["metrics"] == {"weights:mean": 8.0, "steps:max": 2}
        trainer.refuses = True  # another model
        refused = await client.result(await client.post("load_weights", loaded | {"model_seq_id": 2}))
        assert refused == {"error": "no room", "category": "user"}
        trainer.refuses = False
        stolen = {"session_id": other.session, "model_seq_id": 1, "path": path, "optimizer": True}
        assert "another key" in (await other.post("load_weights", stolen, 404))["detail"]
        info = await client.post("weights_info", {"tinker_path": path})
        assert (info["is_lora"], info["lora_rank"]) == (True, 4)
        listed = await client.post(f"training_runs/{client.session}:train:0/checkpoints", verb="GET")
        assert [one["checkpoint_id"] for one in listed["checkpoints"]] == ["weights/one"]
        await other.post(f"training_runs/{client.session}:train:0/checkpoints/weights/one", verb="DELETE", status=404)
        await client.post(f"training_runs/{client.session}:train:0/checkpoints/weights/one", verb="DELETE")
        assert "no such checkpoint" in (await client.post("weights_info", {"tinker_path": path}, 404))["detail"]


async def test_checkpoints_go_when_their_time_to_live_is_over(tmp_path, monkeypatch):
    clock = SimpleNamespace(time=lambda: now)
    now = 1000.0
    monkeypatch.setattr(runs_module, "time", clock)
    async with serving(tmp_path) as http:
        client, other = await Client(http).open(), await Client(http, "tml-b").open()
        for seq, (name, seconds) in enumerate([("short", 60), ("long", 900), ("kept", None)], 1):
            body = {"model_id": client.model, "path": name, "seq_id": seq, "ttl_seconds": seconds}
            await client.result(await client.post("save_weights", body))
        bad = {"model_id": client.model, "path": "bad", "seq_id": 4, "ttl_seconds": "soon"}
        assert "ttl_seconds" in (await client.result(await client.post("save_weights", bad)))["error"]

        async def listed(path="checkpoints"):
            found = (await client.post(path, verb="GET"))["checkpoints"]
            return {one["checkpoint_id"].partition("/")[2]: one["expires_at"] for one in found}

        assert await listed() == {"short": 1060.0, "long": 1900.0, "kept": None}
        assert (await other.post("checkpoints", verb="GET"))["checkpoints"] == []
        address = f"training_runs/{client.model}/checkpoints"
        await client.post(f"{address}/weights/kept/ttl", {"ttl_seconds": 50}, verb="PUT")
        await client.post(f"{address}/weights/long/ttl", {"ttl_seconds": None}, verb="PUT")
        for path in (f"{address}/weights/long/ttl", "training_runs/../checkpoints/weights/long/ttl"):
            await other.post(path, {"ttl_seconds": 1}, 404, verb="PUT")
        assert await listed(address) == {"short": 1060.0, "long": None, "kept": 1050.0}
        now = 1055.0
        gone = {"tinker_path": f"tinker://{client.model}/weights/kept"}
        assert "no such checkpoint" in (await client.post("weights_info", gone, 404))["detail"]
        now = 1065.0
        later, model = await Client(http).open(), client.model
        await later.result(await later.post("save_weights", body | {"model_id": later.model, "path": "x", "seq_id": 1}))
        assert not (tmp_path / model / "weights" / "short").exists(), "a save of any model deletes what has expired"
        await later.post(f"training_runs/{later.model}/checkpoints/weights/x", verb="DELETE")
        await client.result(await client.post("save_weights", body | {"path": "short", "seq_id": 5}))
        assert await listed() == {"long": None, "short": None}
        now = 10.0**12
        assert {path.name for path in (tmp_path / client.model / "weights").iterdir()} == {"long", "short"}
        await client.post(f"{address}/weights/long/publish", status=404)
        await client.post(f"{address}/weights/long/publish", verb="DELETE", status=404)
        assert await listed() == {"long": None, "short": None}


async def test_checkpoints_are_downloaded_by_signed_addresses(tmp_path, monkeypatch):
    clock, now = SimpleNamespace(time=lambda: now), 1000.0
    async with serving(tmp_path) as http:
        client, other = await Client(http).open(), await Client(http, "tml-b").open()
        body = {"model_id": client.model, "path": "one", "seq_id": 1}
        saved = await client.result(await client.post("save_weights_external", body))
        assert saved["path"] == f"tinker://{client.model}/external_weights/one"
        monkeypatch.setattr(service_module, "time", SimpleNamespace(time=clock.time, monotonic=time.monotonic))
        monkeypatch.setattr(downloads, "time", clock)
        listed = f"training_runs/{client.model}/checkpoints"
        assert (await client.post(listed, verb="GET"))["checkpoints"][0]["checkpoint_type"] == "external"
        address = f"{listed}/external_weights/one/external_weights_urls"
        links = await client.post(address, verb="GET")
        assert links["expires"] == now + downloads.SECONDS
        (name, url), *_ = links["urls"].items()
        assert (name, len(links["urls"])) == ("adapter.json", 1)
        assert url.startswith("http://127.0.0.1/api/v1/download/")
        assert (await http.get(url)).content == b"0.0"
        archive = f"/api/v1/{listed}/external_weights/one/archive"
        whole = (await http.get(archive, headers=client.headers)).headers["location"]
        with tarfile.open(fileobj=io.BytesIO((await http.get(whole)).content)) as tar:
            assert tar.getnames() == ["adapter.json", "checkpoint_complete"]
            assert tar.extractfile("adapter.json").read() == b"0.0"
        for path in (address, archive.removeprefix("/api/v1/"), f"{listed}/external_weights/two/archive"):
            await other.post(path, verb="GET", status=404)
        for path in (f"{listed}/external_weights/one/x", f"{listed}/external_weights/one/archive/archive"):
            await client.post(path, verb="GET", status=404)
        later, note = str(int(now) + 10**6), url.replace("adapter.json", "checkpoint.json")
        for forged in (note, url.replace("adapter.json", "../../info.json"), url.replace("1900", later), whole + "x"):
            assert (await http.get(forged)).status_code in (400, 404)
        for forged in ("/api/v1/download/x", "/api/v1/download/a/b/c/d/e/f"):
            assert (await http.get(forged)).status_code == 400
        now = 1000.0 + downloads.SECONDS + 1
        assert (await http.get(url)).status_code == 404
        now = 1000.0
        await client.post(f"{listed}/external_weights/one", verb="DELETE")
        assert (await http.get(url)).status_code == (await http.get(whole)).status_code == 404
        encrypted = body | {"seq_id": 2, "age_encryption_recipients": ["age1x"]}
        refused = await client.result(await client.post("save_weights_external", encrypted))
        assert "encryption is not served" in refused["error"]


async def test_a_checkpoint_stays_where_its_replacement_fails(tmp_path, monkeypatch):
    trainer = FakeTrainer()
    async with serving(tmp_path, trainer) as http:
        client = await Client(http).open()
        body = {"model_id": client.model, "path": "one", "overwrite": True}
        await client.forward(1, 4)
        await client.step(2)
        path = (await client.result(await client.post("save_weights", body | {"seq_id": 3})))["path"]
        await client.step(4)
        bad = await client.result(await client.post("save_weights", body | {"seq_id": 5, "ttl_seconds": "soon"}))
        assert "ttl_seconds" in bad["error"]
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "save", lambda model, folder: folder.mkdir() or 1 / 0)
            bad = await client.result(await client.post("save_weights", body | {"seq_id": 6}))
            assert bad["category"] == "server"
        loaded = {"model_id": client.model, "seq_id": 7, "path": path, "optimizer": True}
        assert "error" not in await client.result(await client.post("load_weights", loaded))
        assert (await client.result(await client.step(8)))["metrics"]["weights:mean"] == 8.0
        await client.result(await client.post("save_weights", body | {"seq_id": 9}))
        assert json.loads((tmp_path / client.model / "weights" / "one" / "state.json").read_text())["weights"] == 8.0


async def test_lists_come_in_pages_newest_first(tmp_path):
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        for seq, name in enumerate("abc", 1):
            body = {"model_id": client.model, "path": name, "seq_id": seq}
            await client.result(await client.post("save_weights", body))

        async def listed(query):
            found = await client.post(f"checkpoints?{query}", verb="GET")
            return [one["checkpoint_id"][-1] for one in found["checkpoints"]], found["cursor"]

        assert await listed("limit=2&offset=0") == (["c", "b"], {"offset": 0, "limit": 2, "total_count": 3})
        assert (await listed("limit=2&offset=2"))[0] == ["a"]
        assert (await listed(""))[0] == ["c", "b", "a"]
        assert (await listed("limit=-1&offset=-1"))[0] == ["c", "b", "a"]
        await client.post("training_runs?limit=x", verb="GET", status=400)
        runs = await client.post("training_runs?limit=1&offset=1", verb="GET")
        assert (runs["training_runs"], runs["cursor"]["total_count"]) == ([], 1)


async def test_samples_have_the_weights_of_their_session(tmp_path):
    samplers = FakeSamplers()
    async with serving(tmp_path, samplers=samplers) as http:
        client = await Client(http).open()
        await client.forward(1, 9)
        await client.step(2)
        save = {"model_id": client.model, "seq_id": 3, "sampling_session_seq_id": 0}
        saved = await client.result(await client.post("save_weights_for_sampler", save))
        base = {"session_id": client.session, "sampling_session_seq_id": 1, "base_model": str(MODEL)}
        frozen = await client.post("create_sampling_session", base)
        await client.forward(4, 1)
        await client.result(await client.step(5))
        body = {"prompt": {"chunks": [{"tokens": [1, 2]}]}, "num_samples": 2, "seq_id": 0, "prompt_logprobs": True}
        body["sampling_params"] = {"max_tokens": 2, "seed": 5, "stop": ["\n", "###"]}
        for session, token in ((saved, 9), (frozen, 7)):
            sampler = session["sampling_session_id"]
            asked = await client.post("asample", body | {"sampling_session_id": sampler})
            assert len(asked["sample_sequence_ids"]) == 2
            assert await client.post("asample", body | {"sampling_session_id": sampler}) == asked
            found = await client.result(asked)
            assert [one["tokens"] for one in found["sequences"]] == [[token] * 2] * 2
            assert found["prompt_logprobs"] == [None, -0.75]
            shown = await client.post(f"samplers/{sampler}", verb="GET")
            assert shown["base_model"] == str(MODEL)
        first, second = samplers.calls[0], samplers.calls[1]
        assert first[2].seed == 5
        assert second[2].seed != 5
        assert list(first[3]) == ["\n", "###"]
        assert first[2].ignore_eos
        await Client(http, "tml-b").post("asample", body | {"sampling_session_id": sampler}, 404)


@pytest.mark.parametrize(
    ("stop", "ids", "texts", "endless"),
    [
        (None, (2,), [], False),
        ([], (), [], True),
        ("x", (), ["x"], True),
        ([7, 8], (7, 8), [], False),
    ],
)
async def test_stops_are_end_of_text_nothing_texts_or_tokens(tmp_path, stop, ids, texts, endless):
    service = Service(FakeTrainer(), FakeSamplers(), MODEL, 32.0, (2,), tmp_path)
    sampling, found = service._sampling({"sampling_params": {"stop": stop}})
    assert (sampling.stop_token_ids, found, sampling.ignore_eos, sampling.max_new_tokens) == (ids, texts, endless, 64)


async def test_finish_ends_what_waits_for_commands_that_never_come(tmp_path):
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        await client.result(await client.forward(1, 1))
        waits = await client.step(4)
        asking = asyncio.create_task(client.result(waits))
        await asyncio.sleep(0.05)
        await client.post(f"sessions/{client.session}/finish", {"reason": {"type": "success"}})
        assert (await asking)["category"] == "user"
        await client.post(f"sessions/{client.session}/finish", {"reason": {"type": "success"}})
        await client.post("optim_step", {"model_id": client.model, "seq_id": 9}, 404)


async def test_a_session_ends_while_others_have_commands_all_the_time(tmp_path):
    trainer = FakeTrainer()
    async with serving(tmp_path, trainer) as http:
        client, busy = await Client(http).open(), await Client(http, "tml-b").open()
        trainer.gate.clear()
        commands = [await busy.forward(seq, 1) for seq in range(1, 30)]
        waits = await client.step(4)
        await client.post(f"sessions/{client.session}/finish", {"reason": {"type": "success"}})
        trainer.delay = 0.02
        trainer.gate.set()
        assert (await client.result(waits))["category"] == "user"
        assert len([call for call in trainer.calls if call[0] == "pass"]) < len(commands)


async def test_what_the_engine_does_not_take_is_refused_at_once(tmp_path):
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        body = {"session_id": client.session, "model_seq_id": 1, "base_model": "tiny", "lora_config": {"rank": 65}}
        assert "takes 64 at most" in (await client.post("create_model", body, 400))["detail"]
        base = {"session_id": client.session, "sampling_session_seq_id": 0, "base_model": "tiny"}
        asked = await client.post("create_sampling_session", base)
        asked |= {"prompt": {"chunks": [{"tokens": [1, 2]}]}, "topk_prompt_logprobs": 21}
        answer = await client.result(await client.post("asample", asked))
        assert (answer["category"], "at most 20" in answer["error"]) == ("user", True)
        asked |= {"prompt": {"chunks": [{"tokens": [1, 1000]}]}, "topk_prompt_logprobs": 0}
        answer = await client.result(await client.post("asample", asked))
        assert answer == {"error": "the prompt has token 1000: the model knows 0 to 999", "category": "user"}


async def test_an_answer_that_takes_long_is_asked_for_again(tmp_path, monkeypatch):
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        monkeypatch.setattr(service_module, "POLL_SECONDS", 0.01)
        answer = await client.post("retrieve_future", {"request_id": (await client.step(2))["request_id"]}, 408)
        assert answer["queue_state"] == "active"
        await client.post("retrieve_future", {"request_id": f"{client.model}/77"}, 410)


async def test_models_share_the_time(tmp_path, monkeypatch):
    trainer = FakeTrainer()
    # Each pass takes a second.
    monkeypatch.setattr(service_module, "time", SimpleNamespace(monotonic=lambda: len(trainer.calls), time=time.time))
    async with serving(tmp_path, trainer) as http:
        first, second = await Client(http).open(), await Client(http, "tml-b").open()
        trainer.gate.clear()
        firsts = [await first.forward(seq, 1) for seq in range(1, 7)]
        seconds = [await second.forward(seq, 1) for seq in range(1, 4)]
        trainer.gate.set()
        await asyncio.gather(first.result(firsts[-1]), second.result(seconds[-1]))
        order = [call[1] == first.model for call in trainer.calls if call[0] == "pass"]
        assert order.index(False) <= 2
        assert order[-2:] == [True, True], "the second one has its three turns before the others' last"
        so_far = len(trainer.calls)
        trainer.gate.clear()
        seconds = [await second.forward(seq, 1) for seq in range(4, 12)]
        firsts = [await first.forward(seq, 1) for seq in range(7, 12)]
        trainer.gate.set()
        await asyncio.gather(first.result(firsts[-1]), second.result(seconds[-1]))
        order = [call[1] == first.model for call in trainer.calls[so_far:] if call[0] == "pass"]
        assert True in order[:3], "the time that the second one has not used is not saved up"


async def test_a_long_pass_lets_other_models_compute_between_its_micro_batches(tmp_path):
    trainer = FakeTrainer(delay=0.03)
    async with serving(tmp_path, trainer) as http:
        large, small = await Client(http).open(), await Client(http, "tml-b").open()
        message = MESSAGES["ForwardBackwardRequest"].FromString(pass_body(large.model, 1, [1]))
        for _ in range(7):
            message.data.append(message.data[0])
        trainer.gate.clear()
        long = await large.post("forward_backward", message.SerializeToString())
        shorts = [await small.forward(seq, 1) for seq in range(1, 4)]
        trainer.gate.set()
        await asyncio.gather(large.result(long), small.result(shorts[-1]))
        assert MESSAGES["ForwardBackwardOutput"].FromString(await large.result(long, PROTOBUF)).metrics == {
            "loss:sum": 8.0
        }
        assert (await large.result(await large.step(2)))["metrics"]["weights:mean"] == 8.0
    order = [call[1] == large.model for call in trainer.calls if call[0] in ("pass", "micro-batch")]
    assert order[-2:] == [True, True], "the short passes come between the micro-batches of the long one"


async def test_limits_of_a_key_refuse_and_leave_the_others_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "MAX_COMMANDS", 2)
    monkeypatch.setattr(service_module, "MAX_MODELS", 1)
    async with serving(tmp_path) as http:
        client, other = await Client(http).open(), await Client(http, "tml-b").open()
        await client.step(5)
        await client.step(6)
        await client.post("optim_step", {"model_id": client.model, "seq_id": 7}, 429)
        assert "models are open" in (await client.second_model(400))["detail"]
        await other.result(await other.step(1))


async def test_a_silent_session_makes_room_for_the_next_program(tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "MAX_MODELS", 1)
    monkeypatch.setattr(service_module, "SILENT_SECONDS", 0.2)
    async with serving(tmp_path) as http:
        dead, other = await Client(http).open(), await Client(http, "tml-b").open()
        await asyncio.sleep(0.3)
        alive = await Client(http).open()
        await alive.result(await alive.step(1))
        monkeypatch.setattr(service_module, "SILENT_SECONDS", 100)
        assert "models are open" in (await alive.second_model(400))["detail"]
        await other.result(await other.step(1))
        assert "is not open" in (await dead.post("optim_step", {"model_id": dead.model, "seq_id": 1}, 404))["detail"]


async def test_the_death_of_a_rank_ends_the_service_and_the_command_runs_again(tmp_path):
    trainer = FakeTrainer()
    service = Service(trainer, FakeSamplers(), MODEL, 32.0, (2,), tmp_path)
    await service.start()
    transport = httpx.ASGITransport(App(service, ""))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        client = await Client(http).open()
        trainer.proceed = lambda model: (_ for _ in ()).throw(WorkerDied("rank 1 died"))
        await client.forward(1, 5)
        with pytest.raises(WorkerDied, match="rank 1"):
            await service.training
    await service.close()
    async with serving(tmp_path) as http:
        client.http = http
        passed = await client.result({"request_id": f"{client.model}/1"})
        assert passed["metrics"] == {"loss:sum": 5.0}


async def test_keys_begin_with_the_token_and_own_their_models(tmp_path):
    async with serving(tmp_path, token="tml-secret.") as http:
        await Client(http, "tml-a").post("create_session", status=401)
        client = await Client(http, "tml-secret.a").open()
        thief = Client(http, "tml-secret.b")
        await thief.post("optim_step", {"model_id": client.model, "seq_id": 1}, 404)
        await thief.post("get_info", {"model_id": client.model}, 404)
        await thief.post("session_heartbeat", {"session_id": client.session}, 404)


def test_two_servers_do_not_share_a_folder(tmp_path, monkeypatch, capsys):
    config = Config()
    config.trainer.default_local_dir = str(tmp_path)
    monkeypatch.setattr(serve_command, "load_config", lambda args, checks: config)
    with locked(tmp_path, "trainer.default_local_dir"):
        assert main(["serve", "model.path=x"]) != 0
    assert "is in use by another run" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["abc", "tml-abc"])
def test_the_printed_key_begins_as_the_sdk_wants(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    served = []

    async def serve(config, token, host, port):
        served.append(token)

    monkeypatch.setattr(serve_command, "_serve", serve)
    monkeypatch.setattr(serve_command, "load_config", lambda args, checks: Config())
    main(["serve", "--token", given, "model.path=x"])
    assert served == ["tml-abc"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("create_model", {}, 400),
        ("create_model", {"session_id": 5, "model_seq_id": 0}, 400),
        ("forward_backward", b"\xff\xff\xff", 400),
        ("asample", {"sampling_session_id": "../../etc"}, 404),
        ("asample", {"sampling_session_id": "x" * 10_000}, 404),
        ("retrieve_future", {"request_id": "x/y"}, 404),
        ("retrieve_future", {"request_id": "MINE/../../x/7"}, 404),
        ("create_model", {"session_id": "MINE/../../x", "model_seq_id": 0}, 404),
        ("create_sampling_session", {"session_id": "MINE/..", "sampling_session_seq_id": 0}, 404),
        ("get_info", {"model_id": "../x"}, 404),
        ("sessions", {}, 400),
        ("create_model", {"session_id": "MINE", "model_seq_id": 0, "base_model": "tiny", "lora_config": 5}, 400),
        ("create_custom_loss", {}, 404),
        ("nothing/at/all", {}, 404),
    ],
)
async def test_bad_requests_have_one_line(tmp_path, path, body, status):
    async with serving(tmp_path) as http:
        client = Client(http)
        mine = (await client.post("create_session"))["session_id"]
        if isinstance(body, dict):
            body = {
                name: value.replace("MINE", mine) if isinstance(value, str) else value for name, value in body.items()
            }
        detail = (await client.post(path, body, status))["detail"]
    assert "\n" not in detail
    assert len(detail) < 400


def hostile(**tensor):
    message = MESSAGES["ForwardBackwardRequest"](seq_id=1, loss_fn="cross_entropy")
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.array([1, 2], "<i4").tobytes()
    sparse = tensor.pop("sparse", None)
    given = MESSAGES["Tensor"](**tensor)
    if sparse is not None:
        given.sparse_csr.MergeFrom(
            MESSAGES["SparseCsr"](**{n: np.array(v, "<i8").tobytes() for n, v in sparse.items()})
        )
    datum.loss_fn_inputs["target_tokens"].MergeFrom(given)
    return message


@pytest.mark.parametrize(
    "message",
    [
        hostile(dtype=2, shape=[2**40, 2**20], sparse={"crow_indices": [0], "col_indices": []}),
        hostile(dtype=2, shape=[2, 2], sparse={"crow_indices": [0, 9, 1], "col_indices": [0]}),
        hostile(dtype=2, shape=[2, 2], sparse={"crow_indices": [0, 1, 1], "col_indices": [7], "values": [1]}),
        hostile(dtype=2, shape=[2, 2], sparse={"crow_indices": [0, 1, 1], "col_indices": [-1], "values": [1]}),
        hostile(dtype=2, shape=[3], dense=b"12345678"),
        hostile(dtype=9, dense=b"12345678"),
        hostile(dtype=2, dense=b"123"),
    ],
)
async def test_hostile_tensors_are_the_users_fault(tmp_path, message):
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        message.model_id = client.model
        answer = await client.result(await client.post("forward_backward", message.SerializeToString()))
        assert answer["category"] == "user"


def json_pass(client, seq, kind="forward_backward", **tensor):
    """The body of SDKs up to 0.19, which leave out types and defaults."""
    column = {"data": [1, 2], "dtype": "int64"} | tensor
    datum = {"model_input": {"chunks": [{"tokens": [1, 2]}]}, "loss_fn_inputs": {"target_tokens": column}}
    given = {"data": [datum], "loss_fn": "cross_entropy"}
    return {f"{kind}_input": given, "model_id": client.model, "seq_id": seq}


async def test_passes_in_json_are_those_of_messages(tmp_path):
    trainer = FakeTrainer()
    async with serving(tmp_path, trainer) as http:
        client = await Client(http).open()
        given = json_pass(client, 1, shape=[2, 1])
        answer = await client.result(await client.post("forward_backward", given))
        assert answer["metrics"] == {"loss:sum": 3.0}
        column = {"data": [-0.5, -0.5], "dtype": "float32", "shape": [2, 1]}
        assert answer["loss_fn_outputs"] == [{"logprobs": column}]
        await client.result(await client.post("forward", json_pass(client, 2, "forward")))
        await client.result(await client.forward(3, 1, 2))
        for seq, wrong in enumerate(({"dtype": "object"}, {"data": ["x"]}, {"data": [2**70]}, {"shape": [9]}), 4):
            answer = await client.result(await client.post("forward_backward", json_pass(client, seq, **wrong)))
            assert answer["category"] == "user"
            assert "a datum cannot be read" in answer["error"]
    passes = [(call[4], call[5][0].ids.tolist()) for call in trainer.calls if call[0] == "pass"]
    assert passes == [(True, [1, 2]), (False, [1, 2]), (True, [1, 2])]


async def test_sparse_columns_are_read(tmp_path):
    trainer = FakeTrainer()
    message = hostile(
        dtype=2, shape=[2, 3], sparse={"crow_indices": [0, 2, 3], "col_indices": [0, 2, 1], "values": [5, 6, 7]}
    )
    async with serving(tmp_path, trainer) as http:
        client = await Client(http).open()
        message.model_id = client.model
        await client.result(await client.post("forward_backward", message.SerializeToString()))
    (call,) = [call for call in trainer.calls if call[0] == "pass"]
    assert call[5][0].columns["target_tokens"].tolist() == [[5, 0, 6], [0, 7, 0]]


class Shows:
    """A processor whose images are as many numbers as their text says; counts those that are in memory."""

    reserved = frozenset()

    def __init__(self):
        self.held, self.most = 0, 0

    def medium(self, kind, part):
        numbers = int(part["image"].rpartition(",")[2])
        medium = Medium(kind, None, "", (7,), (7,), {}, {"pixel_values": torch.zeros(numbers)})
        self.held += numbers
        self.most = max(self.most, self.held)
        weakref.finalize(medium, self._gone, numbers)
        return medium

    def _gone(self, numbers):
        self.held -= numbers


async def asked(client, sampler, seq, *images, status=200, **more):
    chunks = [{"tokens": [1, 2]}, *({"data": str(numbers), "format": "png"} for numbers in images)]
    body = {"sampling_session_id": sampler, "seq_id": seq, "prompt": {"chunks": chunks}}
    return await client.post("asample", body | more, status)


async def sampler_of(client):
    base = {"session_id": client.session, "sampling_session_seq_id": 1, "base_model": str(MODEL)}
    return (await client.post("create_sampling_session", base))["sampling_session_id"]


async def test_images_of_prompts_that_wait_are_not_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(wire, "MAX_FEATURES", 6400)
    trainer, samplers = FakeTrainer(), FakeSamplers(delay=0.1)
    trainer.processor = shown = Shows()
    async with serving(tmp_path, trainer, samplers) as http:
        client = await Client(http).open()
        sampler = await sampler_of(client)
        waiting = [await asked(client, sampler, seq, 1000, 1000) for seq in range(20)]
        waiting += [await asked(client, sampler, 20, 6400), await asked(client, sampler, 21, 6401)]
        text = await client.result(await asked(client, sampler, 22))
        assert shown.held > 0, "a text waits for no image"
        *answers, large, too_large = [await client.result(one) for one in waiting]
    assert all(answer["sequences"] for answer in (*answers, large, text))
    assert "send fewer" in too_large["error"]
    # Those that are sampled from, and one prompt that waits or is refused.
    assert shown.most <= 6400 + 6401


async def test_prompts_that_wait_are_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "MAX_BYTES", 1000)
    samplers = FakeSamplers(delay=0.2)
    async with serving(tmp_path, samplers=samplers) as http:
        client, other = await Client(http).open(), await Client(http, "tml-b").open()
        sampler = await sampler_of(client)
        first = await asked(client, sampler, 0, user="x" * 1000)
        assert "too many samples" in (await asked(client, sampler, 1, status=429))["detail"]
        await other.result(await asked(other, await sampler_of(other), 0))
        await client.result(first)
        await client.result(await asked(client, sampler, 1))


@pytest.mark.prevents("an error of one rank leaves the others in a collective, and the next command of any model hangs")
@pytest.mark.parametrize("before", [False, True], ids=["new", "has run before the restart"])
async def test_an_error_after_which_ranks_differ_is_the_answer_and_a_restart(tmp_path, before):
    if before:
        async with serving(tmp_path) as http:
            client = await Client(http).open()
            await client.result(await client.forward(1, 5))
    trainer = FakeTrainer()
    trainer.proceed = lambda model: (_ for _ in ()).throw(InfraError("rank 1 failed: no room"))
    service = Service(trainer, FakeSamplers(), MODEL, 32.0, (2,), tmp_path)
    await service.start()
    transport = httpx.ASGITransport(App(service, ""))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        if before:
            client.http = http
        else:
            client = await Client(http).open()
            await client.forward(1, 5)
        with pytest.raises(RanksFailed, match="rank 1") as raised:
            await service.training
    assert raised.value.counts == before, "restarts after answers have no end, and need none"
    await service.close()
    async with serving(tmp_path) as http:
        client.http = http
        found = await client.result({"request_id": f"{client.model}/1"})
        if before:
            assert found["metrics"] == {"loss:sum": 5.0}
        else:
            assert found == {"error": "rank 1 failed: no room", "category": "server"}
        await client.forward(2, 6)
        stepped = await client.result(await client.step(3))
        assert stepped["metrics"]["weights:mean"] == 6.0 + 5.0 * before


async def test_a_model_that_cannot_be_loaded_after_a_restart_is_not_a_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr(runs_module, "SNAPSHOT_STEPS", 1)
    async with serving(tmp_path) as http:
        client = await Client(http).open()
        await client.forward(1, 5)
        await client.step(2)
        await client.result(await client.forward(3, 1))
    (state,) = tmp_path.glob("*/snapshots/*/state.json")
    state.write_text("{")
    async with serving(tmp_path) as http:
        client.http = http
        for seq in (4, 5):
            assert "JSONDecodeError" in (await client.result(await client.step(seq)))["error"]
