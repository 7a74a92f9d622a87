"""`agentrl eval` on stored answers, and `agentrl generate`: what is kept, what an interruption costs."""

import json
from argparse import Namespace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.cli.eval import overrides
from agentrl.cli.main import main
from agentrl.core import isolated
from agentrl.core.errors import InfraError
from agentrl.data.files import read_records
from agentrl.engines.hf.hf_engine import HFEngine
from agentrl.rollout.rollouts import Rollouts
from tests.evaluation.conftest import row

pytestmark = pytest.mark.integration

ANSWERS = [["It is 1.", "2"], ["2", "2"], ["boom", "3"], ["x", "4"]]


def figures(home: Path, tmp_path: Path, *settings: str) -> tuple[int, dict[str, dict]]:
    out = tmp_path / "new" / "figures.json"
    code = main(["eval", *settings, "evaluation.resamples=20", "--json", str(out)])
    return code, {report["data_source"]: report for report in json.loads(out.read_text())}


def stored(tmp_path: Path, **more: list) -> Path:
    rows = [row(i, responses=answers, **{k: v[i] for k, v in more.items()}) for i, answers in enumerate(ANSWERS)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "answers.parquet")
    return tmp_path / "answers.parquet"


def test_stored_answers_are_scored_by_source(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    function = f"custom_reward_function.path={home / 'reward.py'}"
    code, found = figures(home, tmp_path, f"data.path={stored(tmp_path)}", function)
    assert code == 1, "an answer whose reward function fails has no score"
    assert "1 answer has no score" in capsys.readouterr().err
    assert found["even"]["mean"]["value"] == pytest.approx((0.5 + 1.0) / 2)
    assert found["odd"]["mean"]["value"] == pytest.approx((1.0 + 0.5) / 2)
    assert (found["even"]["answers"], found["even"]["failed"], found["even"]["rows"]) == (3, 1, 2)
    assert found["odd"]["passes"]["2"]["value"] == 1.0
    assert found["all"]["passes"]["1"]["value"] == pytest.approx(0.75)


def test_verls_keys_and_reward_kwargs(home: Path, tmp_path: Path) -> None:
    lines = [{"source": "s", "rm": {"ground_truth": "2"}, "outputs": "2", "prompt": "?"}]
    (tmp_path / "answers.jsonl").write_text(json.dumps(lines[0]))
    _, found = figures(
        home,
        tmp_path,
        f"data.path={tmp_path / 'answers.jsonl'}",
        "data.response_key=outputs",
        "data.data_source_key=source",
        "data.reward_model_key=rm",
        f"custom_reward_function.path={home / 'reward.py'}",
        "custom_reward_function.reward_kwargs.bonus=1",
    )
    assert found["s"]["mean"]["value"] == 2.0


def test_a_function_for_whole_batches(home: Path, tmp_path: Path) -> None:
    function = [f"custom_reward_function.path={home / 'reward.py'}", "custom_reward_function.name=batched"]
    function.append("reward_model.reward_manager=batch")
    code, found = figures(home, tmp_path, f"data.path={stored(tmp_path)}", *function)
    assert code == 0
    assert found["all"]["mean"]["value"] == pytest.approx((0.5 + 1.0 + 0.5 + 0.5) / 4)


def test_stored_scores_count_where_no_function_is_named(home: Path, tmp_path: Path) -> None:
    path = stored(tmp_path, scores=[[0.0, 1.0], [1.0, 0.2], [0.0, 0.0], [0.2, 0.2]])
    code, found = figures(home, tmp_path, f"data.path={path}", "evaluation.success_threshold=0.2", "evaluation.k=[2]")
    assert code == 0
    assert found["all"]["mean"]["value"] == pytest.approx((0.5 + 0.6 + 0.0 + 0.2) / 4)
    assert found["all"]["passes"]["2"]["value"] == 0.75


def test_a_known_data_set_needs_no_function(home: Path, tmp_path: Path) -> None:
    rows = [row(1, data_source="openai/gsm8k", responses=["#### 2", "#### 3"])]
    (tmp_path / "answers.jsonl").write_text(json.dumps(rows[0] | {"reward_model": {"ground_truth": "2"}}))
    code, found = figures(home, tmp_path, f"data.path={tmp_path / 'answers.jsonl'}")
    assert code == 0
    assert found["openai/gsm8k"]["mean"]["value"] == 0.5


SCORED = "reward.custom_reward_function.name=agentrl.rewards.scorers:exact_match"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "data.path is not set"),
        (["data.path=PATH", "data.response_key=none"], "'none' holds no answers"),
        (["data.path=PATH", "rollout.tempreature=1"], "did you mean rollout.temperature"),
        (["data.path=PATH", "model.path=MODEL", SCORED], "data.output_path is not set"),
        (
            ["data.path=MODEL", "model.path=MODEL", SCORED, "data.output_path=PATH.jsonl"],
            "data.path: MODEL is a folder",
        ),
    ],
)
def test_mistakes(
    home: Path, tmp_path: Path, settings: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored(tmp_path)
    settings = [text.replace("PATH", str(path)).replace("MODEL", str(home / "model")) for text in settings]
    assert main(["eval", *settings]) == 2
    assert message.replace("MODEL", str(home / "model")) in capsys.readouterr().err


def arguments(home: Path, out: Path) -> list[str]:
    return [
        f"model.path={home / 'model'}",
        f"data.path={home / 'rows.jsonl'}",
        f"data.output_path={out}",
        "data.max_response_length=8",
        "rollout.n=2",
        "trainer.device=cpu",
    ]


def test_a_model_answers_and_an_interruption_costs_what_was_not_done(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, asked = tmp_path / "answers.jsonl", []
    rollout = Rollouts.sample

    def dying(self, rows, step, on_done):
        asked.append(len(rows))
        if len(asked) > 1:
            return rollout(self, rows, step, on_done)
        rollout(self, rows[:4], step, on_done)
        raise KeyboardInterrupt

    monkeypatch.setattr(Rollouts, "sample", dying)
    monkeypatch.setattr(isolated, "Process", None)  # none starts: there is nothing to score
    assert main(["generate", *arguments(home, out)]) == 130
    part = out.with_name("answers.jsonl.part")
    with part.open("a") as stream:
        stream.write('\n{"uid": "rows.jsonl:5", "answ')  # killed in the middle of a line
    assert not out.exists()
    assert main(["generate", *arguments(home, out), "rollout.temperature=0.5"]) == 2
    assert "begun with another rollout.temperature" in capsys.readouterr().err
    assert main(["generate", *arguments(home, out)]) == 0
    assert asked == [6, 2]
    assert not part.exists()
    records = read_records(out)
    assert [record["extra_info"]["index"] for record in records] == list(range(6))
    assert all(len(record["responses"]) == 2 for record in records)
    assert records[0]["messages"][0][0]["role"] == "assistant"
    assert main(["generate", *arguments(home, out), "--rows", "1"]) == 0
    assert len(read_records(out)) == 1
    assert read_records(tmp_path / "answers.superseded_1.jsonl") == records


def test_a_row_that_failed_is_answered_with_another_seed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same one, a trajectory that went on until its time was over would do so for ever."""
    out, seeds, broken = tmp_path / "answers.jsonl", [], [True]
    draw = HFEngine.generate

    async def failing(self, token_ids, sampling, *, key, media=()):
        seeds.append((key, sampling.seed))
        if broken[0] and "rows.jsonl:2/1" in key:
            raise InfraError("no answer")
        return await draw(self, token_ids, sampling, key=key, media=media)

    monkeypatch.setattr(HFEngine, "generate", failing)
    settings = [*arguments(home, out), "rollout.infra_retries=0"]
    assert main(["generate", *settings]) == 1
    first, broken[0] = dict(seeds), False
    seeds.clear()
    assert main(["generate", *settings]) == 0
    assert len(seeds) == 2, "the row that failed, and no other"
    assert not {seed for _, seed in seeds} & set(first.values())
    assert all(len(record["responses"]) == 2 for record in read_records(out))


def test_a_model_is_measured_and_its_answers_can_be_measured_again(home: Path, tmp_path: Path) -> None:
    out, function = tmp_path / "answers.parquet", f"custom_reward_function.path={home / 'reward.py'}"
    _, live = figures(home, tmp_path, *arguments(home, out), function)
    _, later = figures(home, tmp_path, f"data.path={out}", function)
    assert live == later
    assert live["all"]["answers"] == 12


def test_a_benchmark_has_a_line_for_each_row(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function = f"custom_reward_function.path={home / 'reward.py'}"
    limits = ["data.max_response_length=4", "rollout.n=2", "trainer.device=cpu", function]
    words = [f"data.path={home / 'rows.jsonl'}", "--model", str(home / "model"), *limits]
    assert main(["eval", *words, "--each", "--json", "each.json"]) == 0
    found = {report["data_source"]: report for report in json.loads(Path("each.json").read_text())}
    assert found.keys() == {"all", *(f"rows.jsonl:{number}" for number in range(1, 7))}
    assert found["rows.jsonl:3"]["answers"] == 2
    assert len(read_records(tmp_path / "answers.jsonl")) == 6


def test_a_row_source_and_options_stand_for_keys() -> None:
    args = Namespace(overrides=["tasks:some?tag=git", "rollout.n=2"], model="runs/demo", agent="mini", url=None)
    assert overrides(args) == [
        "data.output_path=answers.jsonl",
        "model.path=runs/demo",
        "rollout.agent.default_agent_loop=mini",
        "data.path=tasks:some?tag=git",
        "rollout.n=2",
    ]
