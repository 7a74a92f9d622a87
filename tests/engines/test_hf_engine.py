"""What only this engine promises: batching, reuse, reproducibility, failures, memory."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from agentrl.core.clocks import listening
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Generation, Sampling
from agentrl.engines.hf import HFEngine, slots
from agentrl.engines.hf.slots import SlotRunner
from tests.engines import tiny
from tests.engines.conformance import prompt


@asynccontextmanager
async def engine(model: Any = None, **kwargs: Any) -> AsyncIterator[HFEngine]:
    settings = {"max_num_seqs": 16, "max_model_len": 600, **kwargs}
    subject = HFEngine(tiny.llama() if model is None else model, **settings)
    await subject.start()
    try:
        yield subject
    finally:
        await subject.close()


def assert_scores(model: Any, ids: list[int], got: Generation) -> None:
    rows = tiny.logits(model, ids + got.token_ids)[len(ids) - 1 : -1].log_softmax(-1)
    expected = rows[torch.arange(len(got.token_ids)), torch.tensor(got.token_ids)]
    assert (expected - torch.tensor(got.logprobs)).abs().max() < 2e-5


async def conversation(subject: HFEngine, i: int, jitter: random.Random) -> list[Generation]:
    """Four turns with pauses between them, as tools would make."""
    key, ids, turns = f"t{i}", prompt(20 + 11 * i), []
    for turn in range(4):
        turns.append(await subject.generate(ids, Sampling(5 + (i * turn) % 7, seed=100 * i + turn), key=key))
        ids = ids + turns[-1].token_ids + prompt(4, seed=turn)
        await asyncio.sleep(jitter.random() * 0.02)
    subject.release(key)
    return turns


async def conversations(count: int, jitter_seed: int, model: Any, **kwargs: Any) -> list[list[Generation]]:
    jitter = random.Random(jitter_seed)
    async with engine(model, **kwargs) as subject:
        for i in range(count):
            subject.open(f"t{i}")
        return list(await asyncio.gather(*(conversation(subject, i, jitter) for i in range(count))))


@pytest.mark.parametrize("settings", [{}, {"kv_cache_gb": 1e-6}, {"max_num_seqs": 3, "max_num_batched_tokens": 40}])
async def test_deterministic_runs_are_equal_bit_for_bit(settings: dict[str, Any]) -> None:
    """Whatever the pauses between turns: the same tokens and the very same floats, under memory pressure too."""
    model = tiny.llama(hidden_size=64)
    first = await conversations(9, 1, model, deterministic=True, **settings)
    second = await conversations(9, 2, model, deterministic=True, **settings)
    assert first == second


async def test_a_seed_gives_the_same_tokens_whatever_the_timing() -> None:
    model = tiny.llama(hidden_size=64)
    first, second = await conversations(9, 1, model), await conversations(9, 2, model, max_num_seqs=2)
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a, b, strict=True):
            assert x.token_ids == y.token_ids
            assert x.logprobs == pytest.approx(y.logprobs, abs=1e-5)


async def test_deterministic_waits_for_every_open_key() -> None:
    async with engine(deterministic=True) as subject:
        subject.open("a")
        subject.open("b")
        task = asyncio.create_task(subject.generate([1, 2], Sampling(3), key="a"))
        await asyncio.sleep(0.2)
        assert not task.done()
        assert (await subject.health())["awaited_keys"] == 1
        subject.release("b")
        assert len((await task).token_ids) == 3


async def test_turns_compute_their_new_tokens_only() -> None:
    async with engine() as subject:
        ids = prompt(200)
        got = await subject.generate(ids, Sampling(50, seed=1), key="k")
        before = (await subject.health())["computed_tokens"]
        longer = ids + got.token_ids + prompt(10)
        await subject.generate(longer, Sampling(1), key="k")
        # The last drawn token was never fed back, so it counts as new.
        assert (await subject.health())["computed_tokens"] - before == 11


async def test_a_group_computes_its_prompt_once() -> None:
    model = tiny.llama()
    async with engine(model) as subject:
        ids = prompt(300)
        got = await asyncio.gather(*(subject.generate(ids, Sampling(4, seed=i), key=str(i)) for i in range(8)))
        assert (await subject.health())["computed_tokens"] == 300 + 7 + 8 * 3
        for g in got:
            assert_scores(model, ids, g)


async def test_a_long_prompt_does_not_hold_up_decoding() -> None:
    """With a token budget of 32, a prompt of 500 needs 17 passes; others draw a token in each."""
    finished: list[str] = []

    async def one(subject: HFEngine, ids: list[int], tokens: int, key: str) -> None:
        await subject.generate(ids, Sampling(tokens, seed=0), key=key)
        finished.append(key)

    async with engine(max_num_batched_tokens=32) as subject:
        await asyncio.gather(one(subject, [1, 2, 3], 12, "short"), one(subject, prompt(500), 1, "long"))
    assert finished == ["short", "long"]


async def test_requests_beyond_the_limit_wait_in_order() -> None:
    finished: list[int] = []

    async def one(subject: HFEngine, i: int) -> None:
        await subject.generate(prompt(5, seed=i), Sampling(4), key=str(i))
        finished.append(i)

    async with engine(max_num_seqs=2) as subject:
        await asyncio.gather(*(one(subject, i) for i in range(11)))
    assert finished == sorted(finished)


async def test_short_memory_costs_time_and_nothing_else() -> None:
    """The budget holds one long sequence: running ones give way and start over, with the same results."""
    model = tiny.llama()
    ids = [prompt(100 + 40 * i) for i in range(5)]

    async def draw(subject: HFEngine) -> list[Generation]:
        return list(
            await asyncio.gather(*(subject.generate(p, Sampling(250, seed=i), key=str(i)) for i, p in enumerate(ids)))
        )

    async with engine(model, kv_cache_gb=1e-9) as subject:
        tight = await draw(subject)
        assert (await subject.health())["kv_bytes"] <= 600 * 2 * 2 * 2 * 8 * 4
    async with engine(model) as subject:
        roomy = await draw(subject)
    for p, a, b in zip(ids, tight, roomy, strict=True):
        assert a.token_ids == b.token_ids
        assert_scores(model, p, a)


async def test_idle_caches_give_way_to_running_requests() -> None:
    model = tiny.llama()
    per_token = 2 * 2 * 2 * 8 * 4
    async with engine(model, kv_cache_gb=2 * 600 * per_token / 2**30) as subject:
        for i in range(12):
            await subject.generate(prompt(90, seed=i), Sampling(2, seed=i), key=str(i))
        figures = await subject.health()
        assert figures["kv_bytes"] <= 2 * 600 * per_token
        assert figures["cached_sequences"] < 12
        again = prompt(90, seed=0)
        assert_scores(model, again, await subject.generate(again, Sampling(5), key="0"))


async def test_memory_goes_with_the_last_release() -> None:
    async with engine() as subject:
        for key in "ab":
            subject.open(key)
            await subject.generate([1, 2, 3], Sampling(2), key=key)
        subject.release("a")
        assert (await subject.health())["kv_bytes"] > 0
        subject.release("b")
        assert (await subject.health())["kv_bytes"] == 0


@pytest.mark.prevents("out of memory when a colocated engine wakes")
async def test_sleep_frees_the_cache_and_wake_goes_on() -> None:
    model = tiny.llama()
    async with engine(model) as subject:
        ids = prompt(30)
        task = asyncio.create_task(subject.generate(ids, Sampling(500, seed=1), key="k"))
        await asyncio.sleep(0.05)
        await subject.sleep()
        assert not task.done()
        assert (await subject.health())["kv_bytes"] == 0
        await subject.wake()
        assert_scores(model, ids, await task)


async def test_a_failed_pass_costs_the_requests_in_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    forward: Callable[..., Any] = slots.forward
    broken: list[bool] = []

    def sometimes(*args: Any) -> Any:
        if broken.pop() if broken else False:
            raise torch.OutOfMemoryError("no memory left\non this device")
        return forward(*args)

    monkeypatch.setattr(slots, "forward", sometimes)
    async with engine(max_num_seqs=2) as subject:
        broken.append(True)
        results = await asyncio.gather(
            *(subject.generate(prompt(9, seed=i), Sampling(3), key=str(i)) for i in range(4)), return_exceptions=True
        )
        assert [type(result) for result in results] == [InfraError, InfraError, Generation, Generation]
        assert str(results[0]) == "hf engine: OutOfMemoryError: no memory left"
        assert (await subject.health())["failures"] == 1
        assert len((await subject.generate([1], Sampling(3), key="0")).token_ids) == 3


async def test_diverged_weights_are_an_infrastructure_error() -> None:
    model = tiny.llama()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    async with engine(model) as subject:
        with pytest.raises(InfraError, match="not finite"):
            await subject.generate([1, 2], Sampling(3), key="k")


async def test_a_dead_worker_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*args: Any) -> None:
        raise RuntimeError("a bug")

    async with engine() as subject:
        monkeypatch.setattr(SlotRunner, "step", bug)
        monkeypatch.setattr(SlotRunner, "in_flight", bug)
        for _ in range(2):
            with pytest.raises(InfraError, match="a bug"):
                await subject.generate([1], Sampling(3), key="k")
        with pytest.raises(InfraError, match="dead"):
            await subject.health()


async def test_releasing_a_running_key_ends_its_request() -> None:
    async with engine() as subject:
        task = asyncio.create_task(subject.generate([1, 2], Sampling(590), key="k"))
        await asyncio.sleep(0.05)
        subject.release("k")
        assert (await task).finish_reason == "abort"


async def test_a_thousand_tasks() -> None:
    async with engine() as subject:
        got = await asyncio.gather(
            *(
                subject.generate(prompt(1 + i % 40, seed=i), Sampling(1 + i % 5, seed=i), key=str(i))
                for i in range(1000)
            )
        )
        assert [len(g.token_ids) for g in got] == [1 + i % 5 for i in range(1000)]


async def test_closing_ends_requests_and_joins_the_thread() -> None:
    subject = HFEngine(tiny.llama(), max_num_seqs=4, max_model_len=600)
    await subject.start()
    await subject.start()
    task = asyncio.create_task(subject.generate([1, 2], Sampling(590), key="k"))
    await asyncio.sleep(0.05)
    await subject.close()
    await subject.close()
    with pytest.raises(InfraError, match="closed"):
        await task
    assert not any(thread.name == "hf-engine" for thread in threading.enumerate())
    with pytest.raises(InfraError, match="not running"):
        await subject.generate([1], Sampling(1), key="k")
    await subject.start()
    assert len((await subject.generate([1], Sampling(2), key="k")).token_ids) == 2
    await subject.close()


async def test_the_engine_serves_one_event_loop_after_another() -> None:
    subject = HFEngine(tiny.llama(), max_num_seqs=4, max_model_len=600)

    def other_loop() -> None:
        asyncio.run(subject.start())
        subject.open("k")
        assert len(asyncio.run(subject.generate([1], Sampling(2), key="k")).token_ids) == 2
        subject.release("k")

    await asyncio.to_thread(other_loop)
    assert len((await subject.generate([1], Sampling(2), key="k")).token_ids) == 2
    await subject.close()


async def test_training_follows_generation() -> None:
    """Nothing of inference mode sticks to the parameters, and the update is what is sampled from next."""
    model = tiny.lora()
    async with engine(model) as subject:
        ids = prompt(30)
        await subject.generate(ids, Sampling(5), key="k")
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
        model.train()
        model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.backward()
        optimizer.step()
        model.eval()
        await subject.update_weights(1)
        got = await subject.generate(ids, Sampling(5, seed=1), key="k")
        assert got.weight_version == 1
        assert_scores(model, ids, got)


async def test_engine_wide_stop_tokens() -> None:
    async with engine(eos_token_ids=list(range(tiny.VOCABULARY))) as subject:
        assert (await subject.generate([1], Sampling(9), key="k")).finish_reason == "stop"
        assert len((await subject.generate([1], Sampling(9, ignore_eos=True), key="k")).token_ids) == 9


@pytest.mark.parametrize(
    ("ids", "sampling", "message"),
    [
        ([], Sampling(1), "the prompt is empty"),
        (list(range(1, 61)) * 10, Sampling(1), "a prompt of 600 tokens leaves no room"),
        ([1], Sampling(0), "max_new_tokens=0"),
        ([1], Sampling(1, temperature=-1), "temperature=-1"),
        ([1], Sampling(1, top_p=0.0), "top_p=0.0"),
        ([1], Sampling(1, top_k=-2), "top_k=-2"),
        ([1], Sampling(1, min_p=1.5), "min_p=1.5"),
    ],
)
async def test_requests_that_cannot_work(ids: list[int], sampling: Sampling, message: str) -> None:
    async with engine() as subject:
        with pytest.raises(UserError, match=message):
            await subject.generate(ids, sampling, key="k")
        longest = await subject.generate([1] * 599, Sampling(50), key="k")
        assert (len(longest.token_ids), longest.finish_reason) == (1, "length")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"thread": 2}, "did you mean threads"),
        ({"threads": 0}, "threads=0"),
        ({"matmul_precision": "low"}, "matmul_precision=low"),
        ({"kv_cache_gb": -1}, "kv_cache_gb"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
    ],
)
async def test_settings_that_cannot_work(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        async with engine(**kwargs):
            pass


async def test_torch_is_configured_on_request_only() -> None:
    threads, products = torch.get_num_threads(), torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    async with engine():
        assert torch.get_num_threads() == threads
    async with engine(threads=3, matmul_precision="high"):
        assert torch.get_num_threads() == 3
        assert products.fp32_precision == "tf32"
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")


async def test_a_request_without_a_seat_waits_and_says_so() -> None:
    async def asked(subject: HFEngine, key: str) -> list[float]:
        with listening() as heard:
            await subject.generate(prompt(20, seed=ord(key)), Sampling(8, seed=1, ignore_eos=True), key=key)
        return heard

    async with engine(max_num_seqs=1) as subject:
        (first,), (second,) = await asyncio.gather(asked(subject, "a"), asked(subject, "b"))
    assert second > first


@pytest.mark.parametrize("fallback", [False, True])
async def test_a_request_goes_on_with_the_changed_adapter_of_its_policy(fallback: bool) -> None:
    trained = tiny.lora(target_modules=["q_proj", "down_proj"])
    names = {name: name.replace(".default", "") for name, _ in trained.named_parameters() if "lora_" in name}
    scale, ids = trained.active_peft_config.lora_alpha / trained.active_peft_config.r, prompt(30)
    async with engine(fallback=fallback) as subject:

        def give() -> Any:
            own = {names[name]: p.detach() for name, p in trained.named_parameters() if name in names}
            subject.set_adapter("seller", own, scale)

        give()
        await subject.update_weights(1)
        running = asyncio.create_task(subject.generate(ids, Sampling(400, seed=1, adapter="seller"), key="a"))
        while (await subject.health())["drawn_tokens"] < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await subject.pause()
        before = tiny.logits(trained, ids)
        tiny.change(trained)
        give()
        await subject.update_weights(2)
        await subject.resume()
        got = await running
    later = got.versions.count(2)
    assert 0 < later < 400
    assert not torch.allclose(before, tiny.logits(trained, ids))
    late = Generation(got.token_ids[-later:], got.logprobs[-later:], "length", 2)
    assert_scores(trained, ids + got.token_ids[:-later], late)
