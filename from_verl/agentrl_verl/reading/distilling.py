"""verl's section `distillation`: what follows from several of its settings together."""

from collections.abc import Mapping
from typing import Any

SECTION = "distillation"
LOSS = f"{SECTION}.distillation_loss"
DEFAULT = "teacher_model"
"""verl's one teacher, which is left out where others are added."""

ESTIMATORS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}


def distill(config: Any, given: Mapping[str, Any]) -> None:
    """Make the composed `config` what verl makes of its settings `given`: who teaches, and at what distance."""
    if not any(name.startswith(f"{SECTION}.teacher_models") for name in given):
        return
    if given.get(f"{SECTION}.enabled") is not True:
        config.teachers = {}
        return
    teachers = {
        name: teacher for name, teacher in config.teachers.items() if name != DEFAULT or len(config.teachers) == 1
    }
    alone = len(teachers) == 1
    keys = {name: given.get(f"{SECTION}.teacher_models.{name}.key") for name in teachers}
    config.teachers = {name if alone else keys[name] or name: teacher for name, teacher in teachers.items()}
    distillation, mode = config.distillation, given.get(f"{LOSS}.loss_mode", "k3")
    if mode == "forward_kl_topk":
        distillation.topk, distillation.tail = given.get(f"{LOSS}.topk", 32), False
    else:
        distillation.topk, distillation.estimator = 0, ESTIMATORS.get(mode, mode)
    distillation.reward = given.get(f"{LOSS}.use_policy_gradient", False)
    if not distillation.use_rewards:
        distillation.coef = 1.0
