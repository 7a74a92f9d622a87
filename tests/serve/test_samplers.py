"""Samplers: log-probs are those of the weights that drew, whatever else is sampled or trained; texts end an answer;
adapters take turns."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web
from peft import PeftModel

from agentrl.config.schema import Config, Model, Rollout
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.engines.launching import launch
from agentrl.serve import samplers as module
from agentrl.serve.samplers import open_samplers
from agentrl.training.model.handle import ModelHandle
from tests.engines import tiny
from tests.engines.test_remote import Fake
from tests.rollout.scripted import tokenizer

pytestmark = pytest.mark.integration

WORDS = len(tokenizer())
PROMPT = list(range(40, 80))
INFO = {"version": "0.5.23", "enable_lora": True}
LORA: dict[str, Any] = {"target_modules": ["q_proj", "v_proj", "down_proj", "lm_head"]}
ROOM = 10**6


def base() -> Any:
    return tiny.llama(vocab_size=WORDS)


def save_adapter(folder: Path, seed: int) -> Path:
    model = tiny.lora(base(), **LORA)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    model.save_pretrained(folder / f"adapter-{seed}")
    return folder / f"adapter-{seed}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("adapters")
    base().save_pretrained(place / "base")
    return [save_adapter(place, seed) for seed in (1, 2, 3)]


def trained(model: Any) -> Any:
    """The part of `Models` that samplers read."""
    return SimpleNamespace(base=ModelHandle(model), kind="cpu", launch=launch)


@asynccontextmanager
async def samplers_of(folders: list[Path], model: Any, *, running: int = 4, **engine: Any) -> AsyncIterator[Any]:
    rollout = Rollout(name="hf", max_model_len=256, max_num_seqs=running, engine_kwargs={"hf": engine})
    config = Config(model=Model(path=str(folders[0].parent / "base")), rollout=rollout)
    samplers = await open_samplers(config, trained(model), tokenizer())
    try:
        yield samplers
    finally:
        await samplers.close()


def reference(weights: Path | None) -> Any:
    return base() if weights is None else PeftModel.from_pretrained(base(), str(weights)).eval()


def check(weights: Path | None, prompt: list[int], drawn: Any) -> None:
    """Against plain peft and transformers."""
    logprobs = tiny.logits(reference(weights), prompt + drawn.token_ids).log_softmax(-1)[len(prompt) - 1 : -1]
    own = logprobs.gather(1, torch.tensor(drawn.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(drawn.logprobs), own, atol=1e-4, rtol=0)


def step(model: Any) -> None:
    """A step of training by the module's active adapter, with its gradients."""
    loss = model(torch.tensor([PROMPT]), labels=torch.tensor([PROMPT])).loss
    loss.backward()
    with torch.no_grad():
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            parameter -= 0.5 * parameter.grad
            parameter.grad = None


@pytest.mark.parametrize("fallback", [False, True])
async def test_logprobs_are_those_of_the_weights_that_drew(folders: list[Path], fallback: bool) -> None:
    model = tiny.lora(base(), **LORA)  # which trains all the while
    apart = tiny.lora(base(), **LORA)
    async with samplers_of(folders, model, fallback=fallback) as samplers:
        jobs = [(weights, seed) for seed in range(3) for weights in (None, *folders[:2])]
        asked = [
            asyncio.create_task(samplers.generate(w, PROMPT, Sampling(24, seed=seed, ignore_eos=True)))
            for w, seed in jobs
        ]
        for _ in range(4):
            await asyncio.sleep(0)
            async with samplers.training():
                await asyncio.to_thread(step, model)
            scores = await samplers.score(folders[0], PROMPT, 3)
        drawn = await asyncio.gather(*asked)
    for _ in range(4):
        step(apart)
    for mine, theirs in zip(model.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=0, rtol=0)
    for (weights, _), one in zip(jobs, drawn, strict=True):
        assert len(one.token_ids) == 24
        check(weights, PROMPT, one)
    expected = tiny.logits(reference(folders[0]), PROMPT).log_softmax(-1)[:-1]
    own = expected.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0].numpy()
    assert np.isnan([scores.logprobs[0], *scores.topk_logprobs[0]]).all()
    np.testing.assert_allclose(scores.logprobs[1:], own, atol=1e-4)
    np.testing.assert_array_equal(scores.topk_ids[1:], expected.topk(3).indices)
    np.testing.assert_allclose(scores.topk_logprobs[1:], expected.topk(3).values, atol=1e-4)


async def test_the_samples_of_a_prompt_share_its_cache_but_never_an_adapters(folders: list[Path]) -> None:
    async with samplers_of(folders, base(), running=16) as samplers:
        before = await samplers.engine.health()
        for weights in (None, *folders, None):
            asked = (samplers.generate(weights, PROMPT, Sampling(24, seed=seed, ignore_eos=True)) for seed in range(6))
            drawn = await asyncio.gather(*asked)
            for one in drawn:
                check(weights, PROMPT, one)
        figures = await samplers.engine.health()
        computed = [f["prompt_tokens"] - f["reused_tokens"] for f in (before, figures)]
        assert computed[1] - computed[0] == 4 * len(PROMPT) + 26  # of each further sample the last token alone
        longer = PROMPT + drawn[4].token_ids
        check(None, longer, await samplers.generate(None, longer, Sampling(4, seed=1)))
        later = await samplers.engine.health()
    assert later["computed_tokens"] - figures["computed_tokens"] == 1 + 3


async def test_no_adapter_starves_and_the_longest_unused_is_forgotten(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ADAPTERS", 2)
    async with samplers_of(folders, base(), running=2) as samplers:
        order: list[int] = []

        async def ask(number: int, tokens: int) -> None:
            check(
                folders[number], PROMPT, await samplers.generate(folders[number], PROMPT, Sampling(tokens, seed=number))
            )
            order.append(number)

        first = [asyncio.create_task(ask(0, 40)) for _ in range(6)]
        await asyncio.sleep(0.02)
        await ask(1, 10)
        assert order == [1]
        await asyncio.gather(ask(2, 4), *first)
        assert {folder for folder, _ in samplers._names} == {folders[0], folders[2]}
        assert len(samplers.engine.adapters) == 4
        assert not samplers.running


async def test_a_folder_that_is_written_again_has_its_new_weights(folders: list[Path], tmp_path: Path) -> None:
    async with samplers_of(folders, base()) as samplers:
        for number, source in enumerate(folders[:2]):
            shutil.rmtree(folder := tmp_path / "named", ignore_errors=True)
            shutil.copytree(source, folder)
            os.utime(folder, ns=(number, number))
            check(source, PROMPT, await samplers.generate(folder, PROMPT, Sampling(8, seed=0, ignore_eos=True)))


async def test_sampling_and_training_share_the_time(folders: list[Path]) -> None:
    async with samplers_of(folders, base()) as samplers:
        drawing = asyncio.create_task(samplers.generate(None, PROMPT, Sampling(60, ignore_eos=True)))
        calls = 0
        while not drawing.done():
            async with samplers.training():
                await asyncio.to_thread(torch.zeros(1).add_, 1)
                await asyncio.sleep(0.02)
            calls += 1
        assert 1 <= calls < 60
        assert len((await drawing).token_ids) == 60


async def test_texts_and_tokens_end_an_answer(folders: list[Path]) -> None:
    words = tokenizer()
    async with samplers_of(folders, base()) as samplers:
        plain = await samplers.generate(None, PROMPT, Sampling(60, seed=3, ignore_eos=True))
        text = words.decode(plain.token_ids[:12])
        for stop, found in ((text[:1], True), (text[3:5], True), (text[4:9], True), ("never so", False)):
            one = await samplers.generate(None, PROMPT, Sampling(60, seed=3, ignore_eos=True), stop=(stop, "nor this"))
            assert (stop in words.decode(one.token_ids), one.finish_reason == "stop") == (found, found)
            assert stop not in words.decode(one.token_ids[:-1])
            check(None, PROMPT, one)
        end = plain.token_ids[7]
        at = plain.token_ids.index(end)
        one = await samplers.generate(None, PROMPT, Sampling(60, seed=3, stop_token_ids=(end,)))
        assert (one.token_ids, one.finish_reason) == (plain.token_ids[: at + 1], "stop")
        both = await samplers.generate(None, PROMPT, Sampling(ROOM, seed=3, stop_token_ids=(end,)), stop=("never so",))
        assert (both.finish_reason, both.token_ids[-1]) == ("stop", end)
        room = await samplers.generate(None, PROMPT, Sampling(ROOM, ignore_eos=True))
        assert (len(room.token_ids), room.finish_reason) == (256 - len(PROMPT), "length")
        with pytest.raises(UserError, match="leaves no room"):
            await samplers.generate(None, PROMPT * 8, Sampling(1))


async def test_whole_weights_are_those_of_the_last_export(folders: list[Path], tmp_path: Path) -> None:
    model = base()
    async with samplers_of(folders, model) as samplers:
        async with samplers.training():
            model.save_pretrained(tmp_path / "first")
        assert (await samplers.generate(tmp_path / "first", PROMPT, Sampling(4))).token_ids
        pending = asyncio.create_task(samplers.generate(None, PROMPT, Sampling(100, ignore_eos=True)))
        await asyncio.sleep(0.01)
        async with samplers.training():
            tiny.change(model)
            model.save_pretrained(tmp_path / "second")
        with pytest.raises(InfraError, match="have changed"):
            await pending
        for old in (None, folders[0], tmp_path / "first", tmp_path / "missing"):
            with pytest.raises(UserError, match="all weights are trained"):
                await samplers.generate(old, PROMPT, Sampling(4))
        drawing = asyncio.create_task(samplers.generate(tmp_path / "second", PROMPT, Sampling(50, ignore_eos=True)))
        await asyncio.sleep(0.01)
        async with samplers.training():
            assert drawing.done()  # training waits for it
            expected = tiny.logits(model, PROMPT + (await drawing).token_ids).log_softmax(-1)
            tiny.change(model)
        drawn = await drawing
        own = expected[len(PROMPT) - 1 : -1].gather(1, torch.tensor(drawn.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(drawn.logprobs), own, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "changes", [{"use_dora": True}, {"target_modules": ["embed_tokens"]}, {"rank_pattern": {"q_proj": 2}}]
)
async def test_other_adapters_are_refused(folders: list[Path], tmp_path: Path, changes: dict[str, Any]) -> None:
    tiny.lora(base(), **changes).save_pretrained(tmp_path / "other")
    async with samplers_of(folders, base()) as samplers:
        with pytest.raises(UserError, match="plain LoRA"):
            await samplers.generate(tmp_path / "other", PROMPT, Sampling(4))
        (tmp_path / "other" / "adapter_model.safetensors").write_bytes(b"x")
        with pytest.raises(UserError, match="cannot be read"):
            await samplers.score(tmp_path / "other", PROMPT, 0)
        assert (await samplers.generate(folders[0], PROMPT, Sampling(4))).token_ids


class ManyAdapters(Fake):
    """SGLang with adapters: the tokens of an answer tell which of them drew."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[str, str] = {}
        self.calls: list[str] = []

    async def load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(request.path)
        if request.path == "/unload_lora_adapter":
            return web.json_response({"success": self.loaded.pop(body["lora_name"], None) is not None})
        self.loaded[body["lora_name"]] = body["lora_path"]
        return web.json_response({"success": "refused" not in body["lora_path"]})

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        token = int(self.loaded[body["lora_path"]][-1]) if "lora_path" in body else 9
        entry = [-0.5, token, None]
        count = body["sampling_params"]["max_new_tokens"]
        meta = {"output_token_logprobs": [entry] * count, "finish_reason": {"type": "length"}}
        meta["input_token_logprobs"] = [[None, 0, None], *([-0.25 * token, i, None] for i in body["input_ids"][1:])]
        meta["input_top_logprobs"] = [None, *([entry, [-1.0, 8, None]] for _ in body["input_ids"][1:])]
        return web.json_response({"meta_info": meta})


@asynccontextmanager
async def servers_of(count: int) -> AsyncIterator[tuple[Any, list[ManyAdapters]]]:
    made, runners = [ManyAdapters() for _ in range(count)], []
    for fake in made:
        app = web.Application()
        app.router.add_post("/generate", fake.generate)
        app.router.add_get("/health", fake.health)
        for path, answer in (("/server_info", INFO), ("/openapi.json", {"paths": {}})):
            app.router.add_get(path, lambda _, answer=answer: web.json_response(answer))
        for path in ("/load_lora_adapter", "/unload_lora_adapter"):
            app.router.add_post(path, fake.load)
        for path in ("/flush_cache", "/update_weight_version", "/abort_request"):
            app.router.add_post(path, lambda _: web.json_response({"success": True}))
        runners.append(web.AppRunner(app, shutdown_timeout=0.1))
        await runners[-1].setup()
        site = web.TCPSite(runners[-1], "127.0.0.1", 0)
        await site.start()
        fake.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    model = base()
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        rollout = Rollout(name="sglang", base_url=[fake.url for fake in made], max_model_len=256, start_timeout=5)
        samplers = await open_samplers(Config(model=Model(path=folder), rollout=rollout), trained(model), tokenizer())
        try:
            yield samplers, made
        finally:
            await samplers.close()
            for runner in runners:
                await runner.cleanup()


async def test_servers_have_adapters_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "ADAPTERS", 2)
    folders = [tmp_path / f"adapters/{i}" for i in range(4)]
    for folder in (*folders, refused := tmp_path / "refused/7"):
        folder.mkdir(parents=True)
    async with servers_of(2) as (samplers, fakes):
        async with samplers.training():
            jobs = [(w, i) for i in range(3) for w in (None, *folders[:2])]
            drawn = await asyncio.gather(*(samplers.generate(w, PROMPT, Sampling(3, seed=i)) for w, i in jobs))
        assert [one.token_ids[0] for one in drawn] == [9 if w is None else folders.index(w) for w, _ in jobs]
        scores = await samplers.score(folders[3], [5, 6, 7], 2)
        np.testing.assert_allclose(scores.logprobs, [np.nan, -0.75, -0.75])
        assert scores.topk_ids.tolist() == [[0, 0], [3, 8], [3, 8]]
        assert all([*fake.loaded.values()] == [str(folders[1]), str(folders[3])] for fake in fakes)
        with pytest.raises(InfraError):
            await samplers.generate(refused, PROMPT, Sampling(3))
        lost = samplers.engine.pool.replicas[0]
        fakes[0].loaded.clear()  # it starts again
        samplers.engine.pool.lost(lost)
        await samplers.engine.pool.wait_all_serving()
        assert [*fakes[0].loaded.values()] == [str(folders[3])]
        ended = await samplers.generate(folders[3], PROMPT, Sampling(50), stop=(tokenizer().decode([3, 3]),))
        assert (len(ended.token_ids), ended.finish_reason) == (2, "stop")


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [("cuda", {}, "triton"), ("cuda", {"lora_backend": "csgmv"}, "csgmv"), ("cpu", {}, None)],
)
def test_sglang_begins_with_its_faster_lora_kernels(device: str, given: dict[str, str], expected: str | None) -> None:
    config = Config(rollout=Rollout(name="sglang", engine_kwargs={"sglang": given, "vllm": {}}))
    made = module._with_adapters(config, ModelHandle(base()), 64, device)
    kwargs = made.rollout.engine_kwargs["sglang"]
    assert kwargs.get("lora_backend") == expected
    assert {"q_proj", "down_proj", "lm_head"} <= {*kwargs["lora_target_modules"]}
