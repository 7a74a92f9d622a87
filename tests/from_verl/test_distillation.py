"""verl's section `distillation`: who teaches and at what distance, composed as a run composes it."""

from typing import Any

import pytest

from agentrl.config.compose import resolve
from agentrl.core.errors import UserError

TEACHERS, LOSS = "distillation.teacher_models", "distillation.distillation_loss"
GSM8K = [f"+{TEACHERS}.gsm8k.key=openai/gsm8k", f"+{TEACHERS}.gsm8k.model_path=big"]
SIGHT = [f"+{TEACHERS}.sight.key=hiyouga/geometry3k", f"+{TEACHERS}.sight.model_path=seeing"]
PURE = [f"{LOSS}.use_task_rewards=False", f"{LOSS}.use_policy_gradient=True", f"{LOSS}.loss_max_clamp=10.0"]


def composed(*settings: str, enabled: bool = True) -> Any:
    base = ["data.train_files=a.parquet", "actor_rollout_ref.model.path=small", f"distillation.enabled={enabled}"]
    return resolve([*base, *settings], program="verl.trainer.main_ppo", checks=()).config


def test_one_teacher_has_all_rows() -> None:
    wide = f"{TEACHERS}.teacher_model.inference.tensor_model_parallel_size=2"
    config = composed(f"{TEACHERS}.teacher_model.model_path=big", wide, f"{LOSS}.loss_mode=k1", *PURE)
    ((name, teacher),) = config.teachers.items()
    assert (name, teacher.path, teacher.n_gpus, teacher.on_ranks) == ("teacher_model", "big", 2, False)
    found = config.distillation
    assert (found.estimator, found.topk, found.reward, found.use_rewards) == ("kl", 0, True, False)
    assert (found.coef, found.loss_max_clamp, found.log_prob_min_clamp) == (1.0, 10.0, None)


def test_several_teachers_have_the_names_of_their_data_sources() -> None:
    dropped = f"{TEACHERS}.teacher_model.model_path=left_out"
    config = composed(*GSM8K, *SIGHT, dropped, f"{TEACHERS}.sight.inference.name=sglang")
    assert {name: teacher.path for name, teacher in config.teachers.items()} == {
        "openai/gsm8k": "big",
        "hiyouga/geometry3k": "seeing",
    }
    assert config.teachers["hiyouga/geometry3k"].engine == "sglang"
    assert (config.distillation.estimator, config.distillation.reward) == ("low_var_kl", False)


@pytest.mark.parametrize(("topk", "expected"), [([], 32), ([f"{LOSS}.topk=64"], 64)])
def test_the_likeliest_tokens_count_without_a_tail(topk: list[str], expected: int) -> None:
    found = composed(*GSM8K, f"{LOSS}.loss_mode=forward_kl_topk", *topk).distillation
    assert (found.divergence, found.topk, found.tail, found.reward) == ("forward_kl", expected, False, False)


def test_teachers_that_are_not_enabled_teach_nothing() -> None:
    assert composed(*GSM8K, enabled=False).teachers == {}


def test_another_column_that_names_teachers_is_refused() -> None:
    with pytest.raises(UserError, match=r"teacher_key=task: a row names its teacher in extra_info.teacher"):
        composed(*GSM8K, "distillation.teacher_key=task")
