"""`agentrl train` on code: rows from `agentrl data programs`, the code interpreter, hidden tests in the sandbox."""

from pathlib import Path

import pytest

from agentrl.tasks.models import tiny
from agentrl.tracking import load_trajectories, read_metrics
from tests.e2e.conftest import SHAPE, agentrl

pytestmark = pytest.mark.integration

SIZES = ["data.train_batch_size=4", "actor.ppo_mini_batch_size=4", "rollout.n=4", "data.max_response_length=24"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with data/ and an untrained model/."""
    folder = tmp_path_factory.mktemp("code")
    agentrl("data", "programs", "--train", "8", "--val", "4", "--demos", "40", "--out", str(folder / "data"))
    tiny.prepare(folder / "model", [folder / "data/sft.jsonl"], shape=SHAPE)
    return folder


def settings(prepared: Path, run: Path) -> list[str]:
    data = [f"data.{split}_files={prepared}/data/{split}.parquet" for split in ("train", "val")]
    model = [f"model.path={prepared}/model", "model.lora_rank=0"]
    return ["--config-name", "code", *data, *model, *SIZES, f"trainer.default_local_dir={run}"]


@pytest.mark.timeout(600)
def test_a_run_scores_its_answers_in_the_sandbox(tmp_path: Path, prepared: Path) -> None:
    """An untrained model writes no code worth the name, so this reward function puts some in its mouth."""
    judge = tmp_path / "judge.py"
    judge.write_text(
        "from agentrl.rewards.code import compute_score as score\n\n"
        "async def compute_score(data_source, solution_str, ground_truth, extra_info=None, *, sandbox):\n"
        "    code = 'def f(a, b):\\n    return -999' if len(solution_str) % 2 else 'raise SystemExit'\n"
        "    words = f'```python\\n{code}\\n```'\n"
        "    limits = {'timeout': 120, 'total_timeout': 500}\n"
        "    return await score(data_source, words, ground_truth, sandbox=sandbox, **limits)\n"
    )
    own = [f"reward.custom_reward_function.path={judge}", "reward.custom_reward_function.name=compute_score"]
    agentrl("train", *settings(prepared, tmp_path / "run"), *own, "trainer.total_training_steps=2")
    assert [step["step"] for step in read_metrics(tmp_path / "run/metrics.jsonl")] == [0, 1, 2]
    records = [r for step in (1, 2) for r in load_trajectories(tmp_path / f"run/rollouts/{step}.jsonl")]
    assert len(records) == 32
    assert not [record["error"] for record in records if record["outcome"] == "infra_error"]
    found = {(record["reward_extra"]["wrong_answer"], record["reward_extra"]["runtime_error"]) for record in records}
    assert found == {(1.0, 0.0), (0.0, 1.0)}


@pytest.mark.timeout(600)
def test_a_server_that_is_down_masks_what_has_to_run_and_nothing_else(tmp_path: Path, prepared: Path) -> None:
    """The preset's own reward function: an answer without code is worth 0 wherever the sandbox is."""
    down = "reward.sandbox_fusion.url=http://127.0.0.1:9/run_code"
    agentrl("train", *settings(prepared, tmp_path / "run"), down, "trainer.total_training_steps=1")
    records = load_trajectories(tmp_path / "run/rollouts/1.jsonl")
    scored = [record for record in records if record["outcome"] != "infra_error"]
    assert scored
    assert all((record["reward"], record["reward_extra"]["no_code"]) == (0.0, 1.0) for record in scored)
    assert all("127.0.0.1:9" in record["error"] for record in records if record["outcome"] == "infra_error")
