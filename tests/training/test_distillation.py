"""Distillation in the update: against the plain way, one sequence after another; teachers on the ranks, and columns."""

from dataclasses import replace

import pytest
import torch

from agentrl.algorithms.distillation import Distance
from agentrl.config.derived import teacher_of
from agentrl.config.schema import Actor, Config, Distillation, Optim, RolloutCorrection
from agentrl.config.schema.distillation import Teacher
from agentrl.core.errors import UserError
from agentrl.training import Batch, PolicyActor, pack_ledgers
from agentrl.training.model.head import chunked
from agentrl.training.roles.frozen import Reference
from agentrl.training.roles.teachers import RankTeachers, with_teacher_prompts
from agentrl.training.update.distillation import Distiller, turns_of
from agentrl.training.update.micro_batches import MicroBatching
from agentrl.trajectory.row import Row
from tests.training.test_actor import assert_same
from tests.training.tiny import CPU, ledger, lora, tiny

TEMPERATURE = 0.7
PROMPT = [5, 6, 7, 8, 9, 10, 11]


def ledgers(context=(), teachers=(0,)):
    """Four conversations of two turns, two to a prompt."""
    made = [ledger(3 + i, 2, prompt=4, seed=i // 2) for i in range(4)]
    for i, each in enumerate(made):
        each.teacher = teachers[i % len(teachers)]
        each.teacher_prompt = list(context) if i != 1 else []
    return made


def batch_of(made) -> Batch:
    batch = pack_ledgers(made, group=[0, 0, 1, 1])
    batch.advantages = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(5)) * batch.mask
    return batch


def held(*models, **options) -> RankTeachers:
    sizes = MicroBatching(max_tokens=20)
    roles = [Reference(m, temperature=TEMPERATURE, micro_batching=sizes, device=CPU, **options) for m in models]
    return RankTeachers(dict(enumerate(roles)), {})


def actor_of(module, keys, teachers=None, correction=None, *, shares=False, **settings) -> PolicyActor:
    return PolicyActor(
        module,
        actor=Actor(grad_clip=0.0, optim=Optim(lr=1e-3), **settings),
        temperature=TEMPERATURE,
        device=CPU,
        total_steps=9,
        distiller=Distiller(keys, teachers),
        shares=shares,
        rollout_correction=correction or RolloutCorrection(rollout_is=None),
    )


def gradients_of(actor, batch):
    """(gradients, metrics) of an update."""
    caught, step = {}, actor.optimizer.step

    def spied():
        caught.update({n: p.grad.clone() for n, p in actor.model.module.named_parameters() if p.grad is not None})
        return step()

    actor.optimizer.step = spied
    return caught, actor.update(batch)


def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0] / TEMPERATURE


def plain(policy, teachers, made, of_logits):
    """(the mean distance over model tokens of sequences with a teacher, summed over all model tokens)."""
    total, count = 0.0, 0
    for each in made:
        ids, mask = list(each.ids), torch.tensor(list(each.mask)).bool()
        prompt = each.teacher_prompt or ids[: each.prompt_length]
        count += int(mask.sum())
        if each.teacher < 0:
            continue
        own = logits_of(policy, ids)[each.prompt_length - 1 : -1]
        after = ids[each.prompt_length :]
        with torch.no_grad():
            theirs = logits_of(teachers[each.teacher], [*prompt, *after])[len(prompt) - 1 : -1]
        total = total + (of_logits(own, theirs, torch.tensor(after)) * mask[each.prompt_length :]).sum()
    return total / count


def assert_update_is_plain(keys, made, teachers, policy, *, models, **settings):
    distance = Distiller(keys).distance
    wanted = keys.coef * plain(policy, models, made, lambda o, t, _: distance.of_logits(o, t).distance)
    policy.zero_grad()
    wanted.backward()
    expected = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    caught, metrics = gradients_of(actor_of(policy, keys, teachers, **settings), batch_of(made))
    assert_same(caught, expected, tolerance=1e-4)
    shared = sum(each.model_tokens for each in made if each.teacher >= 0) / sum(each.model_tokens for each in made)
    assert metrics["distill/distance"] * shared * keys.coef == pytest.approx(wanted.item(), rel=1e-4)
    assert metrics["distill/share"] == pytest.approx(shared)
    return metrics


ALONE = Distillation(reward=False, use_rewards=False, topk=-1, coef=0.5)


@pytest.mark.parametrize(
    ("kind", "context", "settings"),
    [
        ("forward_kl", (), {}),
        ("jsd", PROMPT, {"ppo_max_token_len_per_gpu": 20}),
        ("reverse_kl", PROMPT, {"shares": True}),
        ("jsd", (), {"shares": True}),
    ],
)
def test_the_distance_to_a_teacher_is_that_of_one_sequence_after_another(kind, context, settings, monkeypatch):
    monkeypatch.setitem(chunked.CHUNK_LOGITS, "cpu", 97 * 40 * 8)
    policy, teacher = tiny(), tiny(seed=3)
    keys, made = replace(ALONE, divergence=kind, beta=0.3), ledgers(context)
    metrics = assert_update_is_plain(keys, made, held(teacher, offload=True), policy, models=[teacher], **settings)
    assert metrics["distill/turn_1"] > 0
    assert metrics["distill/turn_2"] > 0
    assert "distill/turn_3" not in metrics


def test_two_teachers_and_none_by_sequence():
    policy, models = tiny(), [tiny(seed=3), tiny(seed=4)]
    made = ledgers(PROMPT, teachers=(0, 1, -1))
    assert_update_is_plain(ALONE, made, held(*models), policy, models=models, ppo_max_token_len_per_gpu=20)


@pytest.mark.parametrize("support", ["teacher", "student"])
def test_top_k_of_a_teacher_on_the_ranks(support):
    policy, teacher = tiny(), tiny("phi", seed=3)  # another architecture
    keys = replace(ALONE, topk=5, support=support)
    assert_update_is_plain(keys, ledgers(), held(teacher), policy, models=[teacher])


def test_the_policy_with_a_context_teaches_itself():
    policy = tiny()
    start = tiny()
    assert_update_is_plain(ALONE, ledgers(PROMPT), held(policy, as_is=True), policy, models=[start])
    assert all(p.requires_grad for p in policy.parameters())


def test_an_adapters_base_is_a_teacher_and_so_is_the_policy_with_its_adapter():
    policy, base = lora(tiny(), std=0.2), tiny()
    assert_update_is_plain(ALONE, ledgers(), held(policy), policy, models=[base])
    policy = lora(tiny(), std=0.2)
    assert_update_is_plain(ALONE, ledgers(PROMPT), held(policy, as_is=True), policy, models=[lora(tiny(), std=0.2)])


def with_columns(batch, teacher, k=0):
    """The batch as a server has scored it."""
    held_by = held(teacher)
    batch = replace(batch, teacher_logprobs=held_by.logprobs(batch))
    if k:
        rows = [logits_of(teacher, ids.tolist()).log_softmax(-1) for ids in batch.ids.split(batch.lengths)]
        known = torch.cat([torch.cat([torch.zeros_like(own[:1]), own[:-1]]) for own in rows]).topk(k)
        batch.teacher_topk_logprobs, batch.teacher_topk_ids = known.values, known.indices.int()
    return batch


def test_columns_of_a_server_are_as_good_as_the_teacher():
    keys, teacher = replace(ALONE, topk=4), tiny(seed=3)
    mine, metrics = gradients_of(actor_of(tiny(), keys, held(teacher)), batch_of(ledgers()))
    batch = with_columns(batch_of(ledgers()), teacher, k=4)
    other, found = gradients_of(actor_of(tiny(), keys, ppo_max_token_len_per_gpu=20), batch)
    assert_same(mine, other, tolerance=1e-4)
    for name in ("distance", "agreement", "student_mass", "teacher_mass"):
        assert found[f"distill/{name}"] == pytest.approx(metrics[f"distill/{name}"], rel=1e-4)


def test_as_advantage_it_is_the_policy_gradient_of_the_log_ratio():
    keys, teacher = Distillation(coef=0.5), tiny(seed=3)
    batch = with_columns(batch_of(ledgers()), teacher)
    batch.teacher_logprobs[batch.cu_seqlens[1] :][: batch.lengths[1]] = torch.nan  # no answer for the second
    mine, metrics = gradients_of(actor_of(tiny(), keys), batch)
    assert metrics["distill/kl"] == pytest.approx(metrics["distill/distance"])
    alone = actor_of(tiny(), keys)
    ratio = alone.logprobs(batch)[0] - batch.teacher_logprobs.nan_to_num()
    known = batch.mask & ~batch.teacher_logprobs.isnan()
    given = replace(batch, advantages=batch.advantages - 0.5 * torch.where(known, ratio, 0.0))
    alone.distiller = None
    assert_same(mine, gradients_of(alone, given)[0], tolerance=1e-5)


def test_without_rewards_advantages_do_not_count():
    keys, teacher = Distillation(use_rewards=False), tiny(seed=3)
    batch = with_columns(batch_of(ledgers()), teacher)
    one, _ = gradients_of(actor_of(tiny(), keys), batch)
    other, _ = gradients_of(actor_of(tiny(), keys), replace(batch, advantages=7 * batch.mask.float()))
    assert_same(one, other, tolerance=1e-6)


def test_importance_weights_hold_for_the_distance_in_the_loss():
    keys, teacher = replace(ALONE, topk=0, estimator="low_var_kl"), tiny(seed=3)
    batch = with_columns(batch_of(ledgers()), teacher)
    policy = tiny()
    batch.rollout_logprobs = (actor_of(policy, keys).logprobs(batch)[0] - 0.3) * batch.mask  # a ratio of exp(0.3)
    on, _ = gradients_of(actor_of(tiny(), keys, correction=RolloutCorrection()), batch)
    off, _ = gradients_of(actor_of(tiny(), keys), batch)
    assert_same(on, {name: 1.3498588 * gradient for name, gradient in off.items()}, tolerance=1e-4)


def test_the_sampled_token_is_scored_with_the_teachers_prompt():
    made, teacher = ledgers(PROMPT), tiny(seed=3)
    batch = batch_of(made)
    found = held(teacher).logprobs(batch)
    wanted = torch.full_like(found, torch.nan)
    for each, start in zip(made, batch.cu_seqlens.tolist(), strict=False):
        prompt, after = list(each.ids)[: each.prompt_length], list(each.ids)[each.prompt_length :]
        prompt = each.teacher_prompt or prompt
        logprobs = logits_of(teacher, [*prompt, *after]).log_softmax(-1)[len(prompt) - 1 : -1]
        own = logprobs.gather(-1, torch.tensor(after)[:, None])[:, 0]
        wanted[start + each.prompt_length : start + len(each)] = own
    torch.testing.assert_close(found[batch.mask], wanted[batch.mask], atol=1e-5, rtol=1e-5)
    assert found[~batch.mask].isnan().all()
    view = with_teacher_prompts(batch)
    assert view.lengths[0] == len(PROMPT) + len(made[0]) - made[0].prompt_length
    assert view.lengths[1] == len(made[1])


def test_an_average_follows_the_policy():
    policy, start = tiny(seed=1), tiny()
    teachers = RankTeachers(held(tiny()).models, {0: 0.75})
    teachers.follow(actor_of(policy, ALONE).model)
    for name, parameter in teachers.models[0].model.module.named_parameters():
        wanted = 0.75 * start.get_parameter(name) + 0.25 * policy.get_parameter(name)
        torch.testing.assert_close(parameter, wanted, atol=1e-6, rtol=1e-5)


def test_turns_are_counted_within_each_sequence():
    batch = batch_of(ledgers())
    turns = [
        own[mask].tolist()
        for own, mask in zip(turns_of(batch).split(batch.lengths), batch.mask.split(batch.lengths), strict=True)
    ]
    assert turns == [[1] * (3 + i) + [2] * 2 for i in range(4)]


def test_distance_takes_its_keys_from_the_section():
    keys = Distillation(divergence="jsd", beta=0.1, topk=3, loss_max_clamp=2.0, log_prob_min_clamp=-5.0)
    assert Distiller(keys).distance == Distance("jsd", 0.1, 3, loss_max_clamp=2.0, log_prob_min_clamp=-5.0)
    others = Distillation(support="student", tail=False, estimator="mse")
    assert Distiller(others).distance == Distance(topk=0, support="student", tail=False, estimator="mse")


def test_a_higher_temperature_brings_models_together():
    batch, teacher = batch_of(ledgers()), tiny(seed=3)

    def distance(keys):
        return actor_of(tiny(), keys, held(teacher)).update(batch)["distill/distance"]

    assert distance(Distillation(reward=False, topk=-1, temperature=3.0)) < 0.5 * distance(
        Distillation(reward=False, topk=-1)
    )


def test_a_row_names_its_teacher_or_its_data_source_does():
    config = Config(teachers={"math": Teacher(where="ranks"), "code": Teacher(where="ranks")})
    named = Row("a", [], data_source="code", extra_info={"teacher": "math"})
    assert [teacher_of(row, config.teachers) for row in (named, Row("b", [], data_source="code"))] == ["math", "code"]
    with pytest.raises(UserError, match=r"none of teachers \(math, code\)"):
        teacher_of(Row("c", [], data_source="art"), config.teachers)
