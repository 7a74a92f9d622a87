"""`agentrl config check` looks at the files that are here, as a run does before it loads a model."""

from pathlib import Path

import pytest

from agentrl.config.paths import forget_missing
from agentrl.config.schema import Config
from agentrl_verl.reading.file_check import Checked, check_sources
from agentrl_verl.reading.scripts import read_sources

FITTING = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
MANAGER = """
from verl.workers.reward_manager import register

@register("mine_alone")
class Mine:
    def __init__(self, tokenizer, num_examine, compute_score=None, **kwargs): ...
    def __call__(self, data, return_dict=False): ...
"""


def check(folder: Path, text: str, *, files: bool = True) -> Checked:
    """The check of a YAML file that starts from verl's."""
    file = folder / "exp.yaml"
    file.write_text(
        f"defaults: [ppo_trainer, _self_]\ndata: {{max_prompt_length: 64, max_response_length: 64}}\n{text}"
    )
    (found,) = check_sources(read_sources(file), files=files)
    return found


REWARD = "custom_reward_function: {path: reward.py}\n"


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        (FITTING, ""),
        (FITTING.replace("compute_score", "score"), "has no 'compute_score': it has score"),
        (FITTING.replace("data_source", "a, b, c"), "does not fit"),
        ("1 +", "SyntaxError"),
    ],
)
def test_a_reward_function_is_loaded(code: str, trouble: str, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(code)
    found = check(tmp_path, REWARD)
    assert trouble in " ".join(found.troubles)
    assert found.stops == bool(trouble)
    assert not check(tmp_path, REWARD, files=False).stops


def test_what_is_elsewhere_stops_nothing(tmp_path: Path) -> None:
    assert not check(tmp_path, "custom_reward_function: {path: /there/reward.py}\n").stops
    (tmp_path / "reward.py").write_text(f"import a_package_of_the_cluster\n{FITTING}")
    found = check(tmp_path, REWARD)
    assert not found.stops
    assert "No module named 'a_package_of_the_cluster'" in found.complaints[-1][0]
    elsewhere = "reward_model: {reward_manager: theirs, reward_loop_module_path: /there/manager.py}\n"
    assert not check(tmp_path, elsewhere).stops


def test_rows_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"foo": "1 + 1?"}\n')
    file = tmp_path / "exp.yaml"
    file.write_text("defaults: [ppo_trainer, _self_]\ndata: {train_files: rows.jsonl}\n")
    (found,) = check_sources(read_sources(file), files=True)
    assert "has no column 'prompt'" in found.troubles[0]


def test_the_file_of_the_reward_function_may_register_the_manager(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(MANAGER + FITTING)
    named = REWARD + "reward_model: {reward_manager: NAME}\n"
    assert not check(tmp_path, named.replace("NAME", "mine_alone")).stops
    assert "no such manager" in check(tmp_path, named.replace("NAME", "mine_alon")).troubles[0]


def test_a_generative_reward_model_needs_the_address_of_its_server(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(FITTING)
    model = "reward_model: {enable: true, model: {path: some/model}, rollout: {name: vllm}URL}\n"
    assert "reward.reward_model.url" in check(tmp_path, REWARD + model.replace("URL", "")).troubles[0]
    assert not check(tmp_path, REWARD + model.replace("URL", ", url: there:30000")).stops
    assert not check(tmp_path, model.replace("URL", "")).stops, "a classifier scores alone"


def test_a_file_of_a_group_may_be_placed_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "sizes.yaml").write_text("max_prompt_length: 8\n")
    (tmp_path / "own.yaml").write_text("defaults: [sizes@data, _self_]\n")
    (source,) = read_sources(tmp_path / "own.yaml")
    assert [(one.path, one.value) for one in source.settings] == [("data.max_prompt_length", 8)]
    assert not source.mistakes


def test_an_adapters_alpha_matters_with_a_rank_alone(tmp_path: Path) -> None:
    lora = "actor_rollout_ref: {model: {lora_rank: RANK, lora_alpha: 0}}\n"
    assert not check(tmp_path, lora.replace("RANK", "0")).stops
    assert check(tmp_path, lora.replace("RANK", "8")).troubles == ["model.lora_alpha=0.0: must be over 0"]


def test_missing_paths_get_their_defaults(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    config = Config()
    config.data.train_files = [str(tmp_path / "rows.jsonl"), "/there/rows.jsonl"]
    config.data.val_files, config.model.path = str(tmp_path / "rows.jsonl"), "some/model"
    assert forget_missing(config) == {"data.train_files"}
    assert (config.data.train_files, config.model.path) == (None, "some/model")
