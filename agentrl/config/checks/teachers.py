"""Checks of teachers and of what is compared with them."""

from collections.abc import Mapping

from agentrl.config.schema import Distillation, Model, Teacher
from agentrl.core.errors import UserError


def teachers(teachers: Mapping[str, Teacher], distillation: Distillation, model: Model) -> str | None:
    """Check that each teacher is one model in one place, and gives what `distillation` compares."""
    for name, teacher in teachers.items():
        _check(f"teachers.{name}", teacher, model)
    if not teachers:
        return None if distillation == Distillation() else "distillation has no effect without teachers"
    on_ranks = {name for name, teacher in teachers.items() if teacher.on_ranks}
    served = [name for name in teachers if name not in on_ranks]
    if distillation.topk and on_ranks and served:
        raise UserError(f"distillation.topk={distillation.topk}: teachers are servers or on the ranks, not both; set 0")
    if served and (distillation.topk < 0 or (distillation.topk and distillation.support == "student")):
        raise UserError(
            f"distillation.topk={distillation.topk}, support={distillation.support}: the server of teacher "
            f"{served[0]!r} reports its own likeliest tokens only; set where=ranks, or topk=64 and support=teacher"
        )
    if not (distillation.topk or distillation.reward) and distillation.estimator == "kl":
        raise UserError(
            "distillation.estimator=kl with reward=false: its gradient is 0 on average; set low_var_kl, or reward=true"
        )
    return None


def _check(key: str, teacher: Teacher, model: Model) -> None:
    if teacher.model == "policy" and teacher.context is None and teacher.ema is None:
        raise UserError(f"{key}.model=policy: the policy cannot teach itself what it knows; set {key}.context or .ema")
    if teacher.ema is not None and (teacher.model != "policy" or model.lora_rank):
        raise UserError(f"{key}.ema is for model=policy without model.lora_rank, which trains all weights")
    if teacher.on_ranks and teacher.base_url:
        raise UserError(f"{key}: a server at {teacher.base_url} or a model of the ranks; remove one of them")
    if not (teacher.on_ranks or teacher.base_url or teacher.path):
        raise UserError(
            f"{key}: set {key}.model={{path: ...}}, {key}.base_url, {key}.where=ranks or {key}.model=policy"
        )
