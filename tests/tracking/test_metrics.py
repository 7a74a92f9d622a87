"""Figures of a batch, against values worked out by hand."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from agentrl.tracking.meanings import meaning_of
from agentrl.tracking.metrics import is_wall_clock, rollout_metrics, succeeded, validation_metrics
from agentrl.trajectory.trajectory import Outcome, Span, ToolCallRecord


def call(name="calculator", outcome=Outcome.OK, seconds=1.0):
    return ToolCallRecord(0, name, {}, "", outcome, seconds)


def test_scores_of_a_batch(plain):
    metrics = rollout_metrics([plain(0.0), plain(1.0), plain(0.5), plain(None), plain(2.5)])
    assert metrics["rollout/reward_mean"] == 1.0
    assert metrics["rollout/reward_std"] == pytest.approx(math.sqrt((1 + 0 + 0.25 + 2.25) / 4))
    assert (metrics["rollout/reward_min"], metrics["rollout/reward_max"]) == (0.0, 2.5)
    assert metrics["rollout/success"] == 0.5


def test_success_follows_the_threshold_and_the_reward_functions_own_word(plain):
    def success(*trajectories):
        return rollout_metrics(trajectories)["rollout/success"]

    assert succeeded(plain(0.5), threshold=0.5) == 1.0
    assert success(plain(5.0, reward_extra={"acc": False})) == 0.0
    assert success(plain(0.0, reward_extra={"success": np.float32(1.0)})) == 1.0
    assert success(plain(0.0, reward_extra={"acc": 0.25, "success": 1.0})) == 0.25
    assert success(plain(1.0, reward_extra={"acc": "yes"})) == 1.0
    long = plain(0.4)
    long.length_penalty = -0.6
    assert success(long) == 1.0


def test_an_infrastructure_failure_teaches_the_figures_nothing(plain):
    failed = plain(0.0, outcome=Outcome.INFRA_ERROR, finish="error", turns=50, model=9, response=1000)
    with_failure = rollout_metrics([plain(1.0), failed])
    for name in ("reward_mean", "success", "turns_mean", "response_tokens_max", "mask_share", "model_tokens"):
        assert with_failure[f"rollout/{name}"] == rollout_metrics([plain(1.0)])[f"rollout/{name}"], name
    assert with_failure["rollout/infra_drops"] == 1
    assert with_failure["rollout/infra_drop_share"] == 0.5
    assert validation_metrics([plain(1.0), failed])["val/infra_drop_share"] == 0.5
    assert with_failure["finish/error"] == 0.5


def test_lengths_turns_and_finish_reasons(plain):
    two_samples = plain(model=2, response=20, turns=3, user_turns=2, finish="length")
    two_samples.ledgers *= 2
    metrics = rollout_metrics([plain(model=4, response=10), two_samples])
    assert metrics["rollout/turns_mean"] == 2.0
    assert metrics["rollout/turns_max"] == 3.0
    assert metrics["rollout/user_turns"] == 1.0
    assert metrics["rollout/samples_per_trajectory"] == 1.5
    assert metrics["rollout/response_tokens_mean"] == 25.0
    assert metrics["rollout/response_tokens_max"] == 40.0
    assert metrics["rollout/model_tokens"] == 8.0
    assert metrics["rollout/mask_share"] == 8 / 50
    assert metrics["rollout/truncated"] == metrics["finish/length"] == metrics["finish/stop"] == 0.5


def test_tools_by_name_and_outcome(plain):
    first = plain(tool_calls=[call(), call(outcome=Outcome.MODEL_ERROR), call("search", Outcome.INFRA_ERROR)])
    metrics = rollout_metrics([first, plain()])
    assert metrics["tools/calls"] == 1.5
    assert metrics["tools/ok"] == metrics["tools/model_error"] == metrics["tools/infra_error"] == pytest.approx(1 / 3)
    assert metrics["tools/calculator/calls"] == 1.0
    assert metrics["tools/calculator/model_error"] == 0.5
    assert metrics["tools/search/infra_error"] == 1.0


def test_names_that_a_model_makes_up_do_not_become_metrics(plain):
    calls = [call(f"invented_{i}", Outcome.MODEL_ERROR) for i in range(50)]
    metrics = rollout_metrics([plain(tool_calls=[*calls, call()])])
    assert not any("invented" in name for name in metrics)
    assert metrics["tools/other/calls"] == 50.0
    assert metrics["tools/calculator/ok"] == 1.0


def test_groups_without_variance_and_pass_at_n(plain):
    flat = [plain(0.0, uid="a"), plain(0.0, uid="a")]
    mixed = [plain(0.0, uid="b"), plain(1.0, uid="b")]
    alone = [plain(0.0, uid="c"), plain(None, uid="c")]
    metrics = rollout_metrics([*flat, *mixed, *alone])
    assert metrics["rollout/zero_variance_groups"] == 0.5
    assert metrics["rollout/pass_at_n"] == 0.5
    assert "rollout/pass_at_n" not in rollout_metrics(alone)


def test_reward_extras_are_averaged_where_they_are_numbers(plain):
    first = plain(reward_extra={"format": 1, "exact": True, "why": "7", "nan": math.nan, "list": [1.0]})
    second = plain(reward_extra={"format": np.float64(0.5), "array": np.ones(3), "nothing": None})
    extras = {name: value for name, value in rollout_metrics([first, second]).items() if name.startswith("reward/")}
    assert extras == {"reward/format": 0.75, "reward/exact": 1.0}


def test_ledger_violations_are_counted(plain):
    broken = plain(outcome=Outcome.INFRA_ERROR, extra={"ledger_violation": "turns go backwards"})
    assert rollout_metrics([broken, plain()])["rollout/ledger_violations"] == 1.0


def test_differences_from_the_template_are_counted(plain):
    differs = plain(extra={"template_mismatch": "message 1 (assistant) differs"})
    assert rollout_metrics([differs, plain(), plain()])["rollout/template_mismatches"] == 1.0


def test_seconds_of_tools_and_trajectories(plain):
    calls = [call(seconds=float(i)) for i in range(1, 201)]
    spans = [Span("generate", 10.0, 12.0), Span("tool", 12.0, 15.0)]
    metrics = rollout_metrics([plain(tool_calls=calls, spans=spans), plain()])
    assert metrics["perf/tool_seconds_mean"] == 100.5
    assert metrics["perf/tool_seconds_p99"] == 198.0
    assert metrics["perf/trajectory_seconds_max"] == 5.0
    assert metrics["perf/trajectory_seconds_tool"] == 1.5


def test_nothing_at_all_gives_counts_and_no_means():
    metrics = rollout_metrics([])
    assert metrics["rollout/trajectories"] == 0.0
    assert "rollout/reward_mean" not in metrics
    assert all(math.isfinite(value) for value in metrics.values())
    assert validation_metrics([])["val/trajectories"] == 0.0


def test_order_does_not_change_a_bit(plain):
    rng = random.Random(0)
    batch = [plain(rng.random(), uid=str(i % 7), reward_extra={"x": rng.random()}) for i in range(64)]
    batch = [replace(t, tool_calls=[call(seconds=rng.random())]) for t in batch]
    expected = rollout_metrics(batch)
    rng.shuffle(batch)
    assert rollout_metrics(batch) == expected


def test_wall_clock_is_told_apart(plain):
    one, other = plain(tool_calls=[call(seconds=1.0)]), plain(tool_calls=[call(seconds=2.0)])
    a, b = rollout_metrics([one]), rollout_metrics([other])
    assert a != b
    assert {n: v for n, v in a.items() if not is_wall_clock(n)} == {n: v for n, v in b.items() if not is_wall_clock(n)}


def test_validation_by_data_source(plain):
    metrics = validation_metrics([plain(1.0, source="openai/gsm8k"), plain(0.0, source="math"), plain(0.0)])
    assert metrics["val/success"] == pytest.approx(1 / 3)
    assert metrics["val/openai/gsm8k/success"] == 1.0
    assert metrics["val/math/reward_mean"] == 0.0
    assert metrics["val/arithmetic/trajectories"] == 1.0


def test_every_figure_has_a_sentence(dialog):
    names = rollout_metrics([dialog, replace(dialog, reward=0.0)])
    assert [name for name in names if meaning_of(name) is None] == []


def test_containers_of_trajectories(plain):
    def contained(reward, failed=None, **changes):
        task = {"seconds": {"build": 1.0}} | ({} if failed is None else {"failed": failed})
        return replace(plain(reward), extra={"task": task}, **changes)

    late = contained(1.0, outcome=Outcome.MODEL_ERROR, finish="timeout")
    lost = contained(None, "set_up", outcome=Outcome.INFRA_ERROR, finish="error")
    metrics = rollout_metrics([contained(0.0), late, lost, contained(1.0), plain(0.0)])
    found = {name: value for name, value in metrics.items() if name.startswith("tasks/") and value}
    assert found == {
        "tasks/share": 0.8,
        "tasks/success": pytest.approx(2 / 3),
        "tasks/failed_set_up": 0.25,
        "tasks/late": 0.25,
    }
    assert not any(name.startswith("tasks/") for name in rollout_metrics([plain(0.0)]))


def test_a_reward_that_is_no_number_shows_as_such(plain):
    assert math.isnan(rollout_metrics([plain(1.0), plain(math.nan)])["rollout/reward_std"])
