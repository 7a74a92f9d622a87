"""What the page asks for, on the dumps of a small run."""

import json
import shutil

import pytest

from agentrl.core.errors import UserError
from agentrl.tracking.dumps.jsonl import write_trajectories
from agentrl.tracking.status import RunStatus
from agentrl.view.api import Api
from tests.view.conftest import AHEAD, decode, talk


def test_overview(ask, run):
    (found,) = ask("runs")["runs"]
    assert (found["name"], found["path"]) == ("run", str(run))
    assert found["splits"] == {"rollout": [1, 2, 3], "validation": [1, 2, 3]}
    assert found["metrics"] == sorted(["actor/lr", "rollout/reward_mean", *AHEAD])  # null is no point of a curve


def test_metrics(ask):
    series = {"rollout/reward_mean": ([0, 1, 2], [0.0, 0.1, 0.2])}
    assert ask("metrics", names="rollout/reward_mean,none") == {"run": series}
    assert ask("metrics", names="rollout/reward_mean,none", runs="run//../x") == {"run": series}


def test_a_page_of_a_step(ask):
    answer = ask("trajectories", step=2, limit=2, offset=1)
    assert (answer["total"], len(answer["rows"])) == (6, 2)
    assert [row["line"] for row in answer["rows"]] == [1, 2]
    assert answer["reward"] == 0.5
    row = answer["rows"][0]
    assert (row["step"], row["uid"], row["sample"], row["reward"], row["turns"], row["calls"]) == (
        2,
        "train.parquet:0",
        1,
        1.0,
        2,
        1,
    )
    assert row["seconds"] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, 18),
        ({"step": "2-3"}, 12),
        ({"outcome": "infra_error"}, 6),
        ({"outcome": "infra_error,ok"}, 18),
        ({"finish": "stop", "step": 1}, 4),
        ({"reward_min": 0.5}, 6),
        ({"reward_max": 0.5, "step": 1}, 2),
        ({"turns_min": 3}, 0),
        ({"seconds_min": 2}, 9),
        ({"uid": "train.parquet:1", "sample_max": 0}, 3),
        ({"text": "step 2</b>"}, 6),
        ({"text": 'calculator("17'}, 18),
        ({"text": "engine died", "step": 3}, 2),
        ({"text": "no such thing"}, 0),
        ({"source": "other"}, 0),
    ],
)
def test_filters(ask, query, found):
    assert ask("trajectories", **query)["total"] == found


def test_order_puts_what_has_no_value_last(ask):
    rewards = [row["reward"] for row in ask("trajectories", step=1, sort="-reward")["rows"]]
    assert rewards == [1.0, 1.0, 0.0, 0.0, None, None]
    assert [row["reward"] for row in ask("trajectories", step=1, sort="reward")["rows"]][-1] is None


def test_a_conversation_token_by_token(ask):
    record = ask("trajectory", step=2, line=1)
    sample = record["samples"][0]
    assert "".join(sample["texts"]).endswith("trés simple 🙂 <b>step 2</b>")
    assert len(sample["texts"]) == len(sample["columns"]["ids"])
    assert sample["columns"]["advantages"] == [1.25 * mask for mask in sample["columns"]["mask"]]
    assert (record["line"], record["lines"], record["reward"]) == (1, 6, 1.0)
    assert ask("trajectory", step=2, line=0)["samples"][0]["columns"]["advantages"] is None


def test_timeline(ask):
    answer = ask("timeline", step=1)
    assert (len(answer["rows"]), answer["untimed"]) == (6, 0)
    first, last = answer["rows"][0], answer["rows"][2]
    generate, tool, wait = (answer["kinds"].index(kind) for kind in ("generate", "tool", "wait"))
    assert first["spans"] == [generate, 0, 1000, wait, 1000, 1250, tool, 1250, 1500]
    assert last["spans"] == [generate, 1000, 3000, wait, 3000, 3250, tool, 3250, 3500]
    assert answer["figures"] == {}
    later = ask("timeline", step=2)
    assert later["figures"] == AHEAD
    turns = [[0, 1, 21, 1, 1, 45], [0, 0, 21, 1, 0, 22, 1, 1, 23]]  # turn, version, tokens
    assert [row["versions"] for row in later["rows"][1:3]] == turns
    assert ask("timeline", step=2, split="validation")["figures"] == {}


def test_the_same_row_at_another_step(ask):
    assert {"line": 3, "same": True}.items() <= ask("match", step=3, uid="train.parquet:1", sample=1).items()
    assert {"line": 0, "same": False}.items() <= ask("match", step=3, uid="train.parquet:9", sample=1).items()


@pytest.mark.parametrize(
    ("question", "query", "message"),
    [
        ("trajectory", {"step": 9, "line": 0}, "step 9 has no dump; there are 3, from 1 to 3"),
        ("trajectory", {"step": 1, "line": 6}, "step 1 has 6 trajectories"),
        ("trajectories", {"step": "x"}, "invalid literal"),
        ("trajectories", {"run": "../other"}, "run '../other' is not here; there are run"),
        ("trajectories", {"split": "test"}, "rollout, validation"),
    ],
)
def test_questions_without_an_answer(ask, question, query, message):
    with pytest.raises(UserError, match=message):
        ask(question, **query)


def test_metrics_over_tokens_and_time(make_run):
    folder = make_run("axes", 1)
    lines = [{"step": s, "val/success": s / 4, "time/step": 2.0, "rollout/model_tokens": 100} for s in (1, 2, 4)]
    lines.insert(0, {"step": 0, "val/success": 0.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    api = Api([str(folder)])
    by_tokens = api.answer("metrics", {"names": "val/success", "axis": "tokens"})["axes"]["val/success"]
    assert by_tokens == [[0, 1, 2, 4], [0.0, 0.25, 0.5, 1.0], [0.0, 100.0, 200.0, 300.0]]
    assert api.answer("metrics", {"names": "val/success", "axis": "time"})["axes"]["val/success"][2] == [0.0, 2, 4, 6]
    with pytest.raises(UserError, match="axis 'epochs'"):
        api.answer("metrics", {"names": "val/success", "axis": "epochs"})


def test_rows_of_a_prompt_stand_together(ask):
    rows = ask("trajectories", step=1, group=1, sort="-reward")["rows"]
    assert [row["uid"][-1] for row in rows] == ["0", "0", "0", "1", "1", "1"]
    assert [row["reward"] for row in rows[:3]] == [1.0, 0.0, None]
    assert rows[0]["group"] == {"rows": 3, "reward": 0.5}
    assert "group" not in ask("trajectories", step=1)["rows"][0]


def test_settings_of_each_run(make_run):
    folders = [make_run("first", 1), make_run("second", 1), make_run("third", 1)]
    own = "trainer: {{experiment_name: {0}, default_local_dir: runs/{0}, rollout_data_dir: runs/{0}/rollouts}}\n"
    own += "rollout: {{tool: tools/first.yaml}}\n"
    (folders[0] / "config.yaml").write_text("actor: {optim: {lr: 1.0e-6}, kept: {}}\n" + own.format("first"))
    (folders[1] / "config.yaml").write_text("actor: {optim: {lr: 1.0e-5}, kept: {}}\n" + own.format("second"))
    (folders[2] / "config.yaml").write_text("a list, say\n")
    answer = Api([str(folder) for folder in folders]).answer("settings", {})
    names = list(answer["runs"])
    assert [name.split("/")[-1] for name in names] == ["first", "second", "third"]
    assert answer["runs"][names[0]]["actor.optim.lr"] == 1e-6
    assert answer["runs"][names[2]] == {}
    assert answer["differing"] == ["actor.optim.lr"]  # names and folders differ in any two runs


def test_runs_are_found_while_the_page_is_open_and_keep_their_names(tmp_path, run):
    for name in ("b", "sizes/n-4"):
        shutil.copytree(run, tmp_path / name)
    api = Api([str(tmp_path)])
    assert list(api.runs) == ["b", "sizes/n-4"]
    before = api.runs["b"]
    shutil.copytree(run, tmp_path / "a")
    assert api.answer("trajectories", {"run": "a", "step": "1"})["total"] == 6
    assert [one["name"] for one in api.answer("runs", {})["runs"]] == ["a", "b", "sizes/n-4"]
    assert api.runs["b"] is before
    shutil.rmtree(tmp_path / "sizes")
    assert [one["name"] for one in api.answer("runs", {})["runs"]] == ["a", "b"]


def test_state_steps_and_time_to_go(tmp_path):
    lines = [{"step": s, "time/step": 10.0, "val/success": s / 4} for s in (1, 2)]
    lines.insert(0, {"step": 0, "time/step": 1000.0})  # a validation is no step
    with RunStatus(tmp_path, 10):
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (found,) = Api([str(tmp_path)]).answer("runs", {"last": "val/success,none"})["runs"]
        assert (found["state"], found["last_step"], found["total_steps"]) == ("running", 2, 10)
        assert 0 < found["eta"] <= 80
        assert found["last"] == {"val/success": 0.5}
    (found,) = Api([str(tmp_path)]).answer("runs", {})["runs"]
    assert (found["state"], found["eta"]) == ("finished", None)


def test_a_run_is_found_before_its_first_step(tmp_path):
    with RunStatus(tmp_path / "new", 10):
        (found,) = Api([str(tmp_path)]).answer("runs", {})["runs"]
        assert (found["name"], found["state"], found["last_step"], found["eta"]) == ("new", "running", None, None)


def test_advantages_in_the_list(ask):
    rows = ask("trajectories", step=1, sort="-advantage")["rows"]
    assert [row["advantage"] for row in rows] == [1.25, 1.25, None, None, None, None]
    assert ask("trajectories", step=1, advantage_min=1)["total"] == 2


def test_meanings(ask):
    ask("runs")
    meanings = ask("meanings")
    assert meanings["rollout/reward_mean"][0] == "Reward of the scored trajectories, without turn rewards."
    assert set(meanings) >= {"actor/lr", *AHEAD}


def test_tasks_by_step(ask):
    (whole,) = {answer["total"] for answer in (ask("tasks"), ask("tasks", kind="changing"))}
    first, second = ask("tasks")["rows"]
    assert whole == 2
    assert ask("tasks")["kinds"] == {"changing": 2}
    assert (first["uid"], first["means"]) == ("train.parquet:0", {1: 0.5, 2: 0.5, 3: 0.5})
    assert ask("tasks", limit=1, offset=1)["rows"] == [second]
    assert ask("tasks", split="validation")["kinds"] == {"always": 1}
    assert ask("tasks", kind="always")["rows"] == []


def test_tasks_that_change_are_told_from_the_others(tmp_path):
    for step in (1, 2):
        group = [talk(step, 0, 0, reward=float(i % 3 and step > i % 2)) for i in range(30)]
        for i, trajectory in enumerate(group):
            trajectory.row.uid = f"t{i:02}"
        write_trajectories(tmp_path / f"rollouts/{step}.jsonl", step, group, decode)
    answer = Api([str(tmp_path)]).answer("tasks", {"limit": "5"})
    assert answer["kinds"] == {"never": 10, "always": 10, "changing": 10}
    assert [row["uid"] for row in answer["rows"]] == ["t00", "t03", "t06", "t09", "t12"]
    changing = Api([str(tmp_path)]).answer("tasks", {"limit": "1", "kind": "changing"})
    assert changing["rows"][0]["means"] == {1: 0.0, 2: 1.0}
