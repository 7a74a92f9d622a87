"""What every engine must do, whoever makes the tokens: run by each engine's tests over a `Subject`.

Usage: parametrize a test over `CHECKS` and call `await check(subject)` with a started engine. Checks leave the engine
running, with no request in flight. Checks of weights change them; build a subject for each check, or restore.
"""

import asyncio
import gc
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from agentrl.engines.engine import Engine, Generation, Sampling


@dataclass
class Subject:
    """An engine with its reference."""

    engine: Engine
    logits: Callable[[list[int]], Tensor]
    """Reference logits float32 [tokens, vocabulary] with the policy's present weights."""
    vocabulary: int
    change_weights: Callable[[], None]
    """Changes the policy's weights so that log-probs move by far more than `tolerance`."""
    tolerance: float = 1e-4
    """Largest difference of a log-prob from the reference."""
    long: int = 2000
    """New tokens that no check waits for; the engine's max_model_len must hold them after a short prompt."""
    seeded: bool = True
    """Whether a seed decides what is drawn."""
    resumes: bool = True
    """Whether a seeded request goes on after a pause as if there had been none."""
    renormalised: bool = True
    """Whether log-probs are those after top-k, top-p and min-p; else they are those after temperature alone."""
    min_p_first: bool = False
    """Whether min-p cuts before top-k and top-p, not after them."""
    joint: bool = False
    """Whether top-p counts the mass that top-k has cut, not only what is left."""
    exact_penalty: bool = True
    """Whether each token gets the repetition penalty for all tokens before it; else for some of those of the reply."""
    static: bool = False
    """Whether a newcomer waits until those in flight are done; if so, `health` counts the tokens it computes."""


HANGS = 600
"""Seconds after which a check is given up."""
Check = Callable[[Subject], Awaitable[None]]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def prompt(length: int, *, seed: int = 0, vocabulary: int = 64) -> list[int]:
    """Random token ids, the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed * 1000 + length)
    return torch.randint(1, vocabulary, (length,), generator=generator).tolist()


def reference(subject: Subject, ids: list[int], drawn: list[int], temperature: float = 1.0) -> Tensor:
    """Log-probs of `drawn` after `ids`."""
    rows = subject.logits(ids + drawn)[len(ids) - 1 : -1] / (temperature or 1.0)
    return torch.log_softmax(rows, -1)[torch.arange(len(drawn)), torch.tensor(drawn)]


def assert_scores(subject: Subject, ids: list[int], got: Generation, temperature: float = 1.0) -> None:
    """Lengths agree and log-probs are the reference's."""
    assert len(got.token_ids) == len(got.logprobs) > 0
    assert all(0 <= token < subject.vocabulary for token in got.token_ids)
    assert all(logprob <= 0 for logprob in got.logprobs)
    expected = reference(subject, ids, got.token_ids, temperature)
    # Rounding grows with what stands before: after a thousand tokens it was seen to pass 1e-4.
    slack = 1 + torch.arange(len(expected)) / 200
    assert ((expected - torch.tensor(got.logprobs)).abs() / slack).max() < subject.tolerance


async def draw(subject: Subject, ids: list[int], sampling: Sampling, key: str = "k") -> Generation:
    return await asyncio.wait_for(subject.engine.generate(ids, sampling, key=key), HANGS)


async def move_on(subject: Subject, count: int = 3) -> None:
    """Return when the `count` long requests in flight have drawn tokens, as one that comes after them has."""
    while (await subject.engine.health())["running"] < count:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    if not subject.static:
        await draw(subject, [3, 2], Sampling(8, seed=0), "later")
        return
    before = (await subject.engine.health())["computed_tokens"]
    while (await subject.engine.health())["computed_tokens"] < before + 8 * count:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def running(subject: Subject, count: int = 3) -> list[asyncio.Task[Generation]]:
    """Long requests that have begun."""
    tasks = [
        asyncio.create_task(
            draw(subject, prompt(9 + i, vocabulary=subject.vocabulary), Sampling(subject.long, seed=i), f"long{i}")
        )
        for i in range(count)
    ]
    await move_on(subject, count)
    assert not any(task.done() for task in tasks)
    return tasks


async def finished(tasks: list[asyncio.Task[Generation]]) -> list[Generation]:
    return list(await asyncio.wait_for(asyncio.gather(*tasks), HANGS))


@check
async def lengths_and_logprobs(subject: Subject) -> None:
    for length, new in ((1, 1), (2, 7), (33, 20), (200, 3)):
        ids = prompt(length, vocabulary=subject.vocabulary)
        got = await draw(subject, ids, Sampling(new, seed=length))
        assert got.finish_reason == "length"
        assert len(got.token_ids) == new
        assert_scores(subject, ids, got)


@check
async def temperature_scales_logprobs(subject: Subject) -> None:
    ids = prompt(20, vocabulary=subject.vocabulary)
    for temperature in (0.5, 1.7):
        got = await draw(subject, ids, Sampling(12, temperature=temperature, seed=1))
        assert_scores(subject, ids, got, temperature)


@check
async def greedy_takes_the_likeliest(subject: Subject) -> None:
    ids = prompt(20, vocabulary=subject.vocabulary)
    got = await draw(subject, ids, Sampling(10, temperature=0.0))
    assert_scores(subject, ids, got)
    rows = subject.logits(ids + got.token_ids)[len(ids) - 1 : -1]
    chosen = rows[torch.arange(10), torch.tensor(got.token_ids)]
    assert (rows.max(-1).values - chosen).max() < subject.tolerance


@check
async def stop_tokens_end_and_are_kept(subject: Subject) -> None:
    ids = prompt(12, vocabulary=subject.vocabulary)
    free = await draw(subject, ids, Sampling(40, temperature=0))
    stop = free.token_ids[len(free.token_ids) // 2]
    first = free.token_ids.index(stop)
    got = await draw(subject, ids, Sampling(40, temperature=0, stop_token_ids=(stop,)))
    assert got.finish_reason == "stop"
    assert got.token_ids[-1] == stop
    assert got.token_ids.count(stop) == 1
    assert len(got.token_ids) == first + 1
    assert_scores(subject, ids, got)


@check
async def of_several_stop_tokens_the_first_to_come_ends(subject: Subject) -> None:
    ids = prompt(12, vocabulary=subject.vocabulary)
    free = (await draw(subject, ids, Sampling(40, temperature=0))).token_ids
    absent = next(token for token in range(subject.vocabulary) if token not in free)
    for late, early in ((free[30], free[10]), (free[10], free[30])):
        got = await draw(subject, ids, Sampling(40, temperature=0, stop_token_ids=(absent, late, early)))
        first = min(free.index(late), free.index(early))
        assert got.token_ids == free[: first + 1]
        assert got.finish_reason == "stop"


@check
async def ignore_eos_goes_on(subject: Subject) -> None:
    ids = prompt(12, vocabulary=subject.vocabulary)
    stops = tuple(range(subject.vocabulary))
    assert len((await draw(subject, ids, Sampling(9, seed=3, stop_token_ids=stops))).token_ids) == 1
    got = await draw(subject, ids, Sampling(9, seed=3, stop_token_ids=stops, ignore_eos=True))
    assert got.finish_reason == "length"
    assert len(got.token_ids) == 9


@check
async def seeds_repeat_and_differ(subject: Subject) -> None:
    if not subject.seeded:
        pytest.skip("this engine knows no seeds")
    ids = prompt(15, vocabulary=subject.vocabulary)
    same = [await draw(subject, ids, Sampling(16, seed=5), key=str(i)) for i in range(2)]
    assert same[0].token_ids == same[1].token_ids
    other = await draw(subject, ids, Sampling(16, seed=6))
    assert other.token_ids != same[0].token_ids
    unseeded = [await draw(subject, ids, Sampling(16)) for _ in range(2)]
    assert unseeded[0].token_ids != unseeded[1].token_ids


@check
async def seeds_hold_in_company(subject: Subject) -> None:
    """The same request alone and among others."""
    if not subject.seeded:
        pytest.skip("this engine knows no seeds")
    ids = prompt(30, vocabulary=subject.vocabulary)
    alone = await draw(subject, ids, Sampling(16, seed=5))
    others = [
        draw(subject, prompt(10 + 7 * i, vocabulary=subject.vocabulary), Sampling(5 + i, seed=i), f"o{i}")
        for i in range(12)
    ]
    among, *_ = await asyncio.gather(draw(subject, ids, Sampling(16, seed=5), "fresh"), *others)
    assert among.token_ids == alone.token_ids


async def _counts(subject: Subject, ids: list[int], sampling: Sampling, samples: int) -> Counter[int]:
    drawn = await asyncio.gather(
        *(subject.engine.generate(ids, replace(sampling, seed=i), key=f"c{i}") for i in range(samples))
    )
    for i in range(samples):
        subject.engine.release(f"c{i}")
    return Counter(got.token_ids[0] for got in drawn)


def filtered(probs: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, joint: bool = False) -> Tensor:
    """The definition, by sorting everything: top-k, then top-p of what is left (`joint`: of all), then min-p."""
    values, order = probs.sort(descending=True)
    if top_k > 0:
        values[top_k:] = 0
        values = values if joint else values / values.sum()
    before = values.cumsum(0) - values
    values = torch.where(before < top_p, values, 0.0)
    values = torch.where(values >= min_p * values[0], values, 0.0)
    out = torch.zeros_like(probs).scatter_(0, order, values)
    return out / out.sum()


def assert_fits(counts: Counter[int], expected: Tensor) -> None:
    """Pearson's chi-square, rare tokens lumped; 5 standard deviations above the mean is a failure."""
    samples = sum(counts.values())
    observed = torch.tensor([counts[i] for i in range(len(expected))], dtype=torch.float64)
    wanted = expected.double() * samples
    assert observed[wanted == 0].sum() == 0, "a token was drawn that the filter excludes"
    often = wanted >= 8
    pairs = [(o, w) for o, w in zip(observed[often].tolist(), wanted[often].tolist(), strict=True)]
    rest = float(wanted[~often].sum())
    if rest >= 8:
        pairs.append((float(observed[~often].sum()), rest))
    square = sum((o - w) ** 2 / w for o, w in pairs)
    freedom = max(len(pairs) - 1, 1)
    assert square < freedom + 5 * math.sqrt(2 * freedom), (square, freedom)


@check
async def draws_follow_the_distribution(subject: Subject) -> None:
    ids = prompt(10, vocabulary=subject.vocabulary)
    logits = subject.logits(ids)[-1]
    for temperature in (1.0, 0.6):
        counts = await _counts(subject, ids, Sampling(1, temperature=temperature), 800)
        assert_fits(counts, torch.softmax(logits / temperature, -1))


@check
async def filters_follow_their_definition(subject: Subject) -> None:
    ids = prompt(10, vocabulary=subject.vocabulary)
    probs = torch.softmax(subject.logits(ids)[-1] / 1.3, -1)
    cases = ({"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.8, "min_p": 0.05})
    for case in cases:
        sampling = Sampling(1, temperature=1.3, **case)
        counts = await _counts(subject, ids, sampling, 400)
        first = {"min_p": case["min_p"]} if subject.min_p_first and "min_p" in case else {}
        expected = filtered(filtered(probs.clone(), **first), **case, joint=subject.joint)
        assert_fits(counts, expected)
        got = await draw(subject, ids, replace(sampling, seed=1))
        scored = expected if subject.renormalised else probs
        assert abs(got.logprobs[0] - scored[got.token_ids[0]].log().item()) < subject.tolerance


@check
async def repetition_is_penalized(subject: Subject) -> None:
    """Each greedy token is the likeliest of the penalized logits, and has its log-prob there."""
    if not subject.exact_penalty:
        await _repetition_changes_log_probs(subject)
        return
    ids = prompt(10, vocabulary=subject.vocabulary)
    got = await draw(subject, ids, Sampling(8, temperature=0.0, repetition_penalty=1.7))
    for i, (token, logprob) in enumerate(zip(got.token_ids, got.logprobs, strict=True)):
        drawn = got.token_ids[:i]
        logits = subject.logits(ids + drawn)[-1]
        seen = torch.tensor(sorted({*drawn, *ids}))
        logits[seen] = torch.where(logits[seen] < 0, logits[seen] * 1.7, logits[seen] / 1.7)
        logprobs = torch.log_softmax(logits, -1)
        assert logprobs[token] > logprobs.max() - subject.tolerance
        assert abs(logprobs[token].item() - logprob) < subject.tolerance


async def _repetition_changes_log_probs(subject: Subject) -> None:
    ids, sampling = prompt(10, vocabulary=subject.vocabulary), Sampling(8, temperature=0.0)
    plain, penalized = [await draw(subject, ids, replace(sampling, repetition_penalty=p)) for p in (1.0, 2.0)]
    assert abs(penalized.logprobs[0] - plain.logprobs[0]) < subject.tolerance
    assert penalized.logprobs[-1] != plain.logprobs[-1]


@check
async def many_at_once_with_mixed_lengths(subject: Subject) -> None:
    ids = [prompt(1 + 37 * i % 150, seed=i, vocabulary=subject.vocabulary) for i in range(64)]
    got = await asyncio.gather(*(draw(subject, p, Sampling(1 + i % 23, seed=i), f"m{i}") for i, p in enumerate(ids)))
    for i, (p, g) in enumerate(zip(ids, got, strict=True)):
        assert len(g.token_ids) == 1 + i % 23
        assert_scores(subject, p, g)
        subject.engine.release(f"m{i}")


@check
async def a_group_shares_its_prompt(subject: Subject) -> None:
    ids = prompt(120, vocabulary=subject.vocabulary)
    got = await asyncio.gather(*(draw(subject, ids, Sampling(12, seed=i), f"g{i}") for i in range(8)))
    for g in got:
        assert_scores(subject, ids, g)
    assert len({tuple(g.token_ids) for g in got}) > 1


@check
async def turns_continue_as_if_fresh(subject: Subject) -> None:
    """Reusing the cache of earlier turns changes nothing, nor does a rewritten history."""
    ids = prompt(40, vocabulary=subject.vocabulary)
    subject.engine.open("conversation")
    for turn in range(4):
        sampling = Sampling(10, seed=turn, temperature=1.0 if subject.seeded else 0.0)
        got = await draw(subject, ids, sampling, "conversation")
        fresh = await draw(subject, ids, sampling, f"fresh{turn}")
        assert got.token_ids == fresh.token_ids
        assert_scores(subject, ids, got)
        ids = ids + got.token_ids + prompt(6 + turn, seed=turn, vocabulary=subject.vocabulary)
    rewritten = ids[:50] + prompt(20, seed=9, vocabulary=subject.vocabulary)
    assert_scores(subject, rewritten, await draw(subject, rewritten, Sampling(10, seed=1), "conversation"))
    subject.engine.release("conversation")


@check
async def abort_returns_what_was_drawn(subject: Subject) -> None:
    tasks = await running(subject)
    await subject.engine.abort()
    for i, got in enumerate(await finished(tasks)):
        assert got.finish_reason == "abort", f"{len(got.token_ids)} tokens"
        assert len(got.token_ids) < subject.long
        assert_scores(subject, prompt(9 + i, vocabulary=subject.vocabulary), got)
    assert (await draw(subject, [5, 6], Sampling(4, seed=1))).finish_reason == "length"


@check
async def cancelling_leaves_nothing_running(subject: Subject) -> None:
    tasks = await running(subject)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() for task in tasks)
    for _ in range(400):
        figures = await subject.engine.health()
        if not figures["running"] + figures["waiting"]:
            return
        await asyncio.sleep(0.05)
    pytest.fail("cancelled requests still run")


@check
async def pause_holds_and_resume_goes_on(subject: Subject) -> None:
    ids = prompt(17, vocabulary=subject.vocabulary)
    sampling = Sampling(60, seed=2, temperature=1.0 if subject.seeded and subject.resumes else 0.0)
    expected = await draw(subject, ids, sampling, "a")
    task = asyncio.create_task(draw(subject, ids, sampling, "b"))
    await asyncio.sleep(0.01)
    await subject.engine.pause()
    late = asyncio.create_task(draw(subject, [4, 5, 6], Sampling(3, seed=0), "c"))
    done = task.done()
    await asyncio.sleep(0.4)
    assert task.done() == done
    assert not late.done()
    await subject.engine.resume()
    assert (await task).token_ids == expected.token_ids
    assert len((await late).token_ids) == 3


@check
async def new_weights_leave_no_stale_cache(subject: Subject) -> None:
    """A prefix cached by the old weights must not be read by the new ones, within a key or across keys."""
    ids = prompt(60, vocabulary=subject.vocabulary)
    before = await draw(subject, ids, Sampling(8, seed=1), "old")
    subject.change_weights()
    await subject.engine.update_weights(before.weight_version + 7)
    moved = reference(subject, ids, before.token_ids) - torch.tensor(before.logprobs)
    assert moved.abs().max() > 20 * subject.tolerance, "the change is too small to notice a stale cache"
    for key in ("old", "other"):
        got = await draw(subject, ids, Sampling(8, seed=1), key)
        assert_scores(subject, ids, got)
        assert got.weight_version == before.weight_version + 7


@check
async def weights_change_under_running_requests(subject: Subject) -> None:
    old = (await draw(subject, [3], Sampling(1))).weight_version
    tasks = await running(subject)
    await subject.engine.pause()
    subject.change_weights()
    await subject.engine.update_weights(old + 3)
    await subject.engine.resume()
    await move_on(subject)
    await subject.engine.abort()
    for i, got in enumerate(await finished(tasks)):
        ids = prompt(9 + i, vocabulary=subject.vocabulary)
        expected = reference(subject, ids, got.token_ids)
        # The last tokens were drawn by the new weights over a cache made by the new weights.
        assert abs(expected[-1].item() - got.logprobs[-1]) < subject.tolerance
        assert set(got.versions) == {old, old + 3}, f"{len(got.token_ids)} tokens"
        assert list(got.versions) == sorted(got.versions)
        assert len(got.versions) == len(got.token_ids)
    assert (await draw(subject, [3], Sampling(1))).weight_version == old + 3


@check
async def releasing_an_unknown_key_is_fine(subject: Subject) -> None:
    subject.engine.release("never seen")
    subject.engine.open("opened only")
    subject.engine.release("opened only")
    subject.engine.release("opened only")
    assert len((await draw(subject, [7], Sampling(3))).token_ids) == 3


@check
async def sleeping_and_waking_keeps_the_weights(subject: Subject) -> None:
    ids = prompt(25, vocabulary=subject.vocabulary)
    before = await draw(subject, ids, Sampling(6, temperature=0))
    await subject.engine.sleep()
    await subject.engine.wake()
    after = await draw(subject, ids, Sampling(6, temperature=0))
    assert after.token_ids == before.token_ids
    assert_scores(subject, ids, after)


@check
async def an_update_wakes_a_sleeper(subject: Subject) -> None:
    ids = prompt(25, vocabulary=subject.vocabulary)
    await subject.engine.sleep()
    subject.change_weights()
    await subject.engine.update_weights(9)
    await subject.engine.wake()
    got = await draw(subject, ids, Sampling(6, seed=4))
    assert_scores(subject, ids, got)
    assert got.weight_version == 9


@check
async def candidates_are_the_likeliest_first_tokens(subject: Subject) -> None:
    ids = prompt(12, vocabulary=subject.vocabulary)
    got = await draw(subject, ids, Sampling(3, temperature=0.7, seed=1, candidates=5))
    expected = torch.log_softmax(subject.logits(ids)[-1] / 0.7, -1)
    told = sorted(got.candidates, key=lambda pair: -pair[1])[:5]
    assert (torch.tensor([logprob for _, logprob in told]) - expected.topk(5).values).abs().max() < subject.tolerance
    assert all(abs(expected[token] - logprob) < subject.tolerance for token, logprob in told)
    assert not (await draw(subject, ids, Sampling(3, seed=1))).candidates


@check
async def health_gives_figures(subject: Subject) -> None:
    figures = await subject.engine.health()
    assert figures
    assert all(isinstance(value, float | int) for value in figures.values())


@check
async def the_event_loop_is_never_blocked(subject: Subject) -> None:
    worst, longest = 0.0, 0.0

    async def watch() -> None:
        nonlocal worst, longest
        while True:
            start, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - start)
            worst = max(worst, time.thread_time() - cpu)  # what others do to this machine counts for nothing

    gc.collect()
    gc.freeze()  # a collection over all that other tests have left would count here
    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(draw(subject, prompt(50, seed=i), Sampling(10, seed=i), f"w{i}") for i in range(200)))
    watcher.cancel()
    gc.unfreeze()
    for i in range(200):
        subject.engine.release(f"w{i}")
    if worst > 0.5 or longest > 20:
        pytest.fail(f"the event loop stood still for {longest:.2f} s, {worst:.2f} s of them at work")
