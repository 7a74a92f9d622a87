"""Checks across keys: each says in one line what does not fit, and what to set."""

import pytest

from agentrl.config import compose, resolve
from agentrl.core.errors import UserError

FP8, DRAFTS = "rollout.quantization=fp8", "rollout.speculative_algorithm=ngram"
SERVER = ["rollout.name=sglang", "rollout.free_cache_engine=false"]


@pytest.mark.prevents("batches that do not divide fail in the middle of a run")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["rollout.top_p=0.9", "algorithm.rollout_correction.bypass_mode=true"], "the trainer's of the whole one"),
        ([DRAFTS, "rollout.top_p=0.9"], "with rollout.top_p=0.9: servers check drafted tokens against the whole"),
        ([DRAFTS, "rollout.val_kwargs.min_p=0.1"], "with rollout.val_kwargs: servers check drafted tokens"),
        (["rollout.quantization=fp9"], "rollout.quantization=fp9"),
        (["rollout.n=1"], "rollout.n=1 with algorithm.adv_estimator=grpo"),
        (["actor.ppo_mini_batch_size=32"], "actor.ppo_mini_batch_size=32 is over data.train_batch_size=16"),
        (["actor.ppo_mini_batch_size=5"], "data.train_batch_size=16 is not a multiple of actor.ppo_mini_batch_size=5"),
        (["actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true"], "the KL would count twice"),
        (["rollout.gpu_memory_utilization=0.99"], "the policy trains on the same GPU"),
        (["model.policies=[a,b]"], "model.policies needs model.lora_rank, rollout.name of auto, hf"),
        (["model.policies=[a,a]", "model.lora_rank=4"], "model.policies=['a', 'a']: give them different names"),
        (["model.policies=[a,a/b]", "model.lora_rank=4"], "without a slash"),
        (["rollout.max_model_len=512"], "leaves no room after data.max_prompt_length=512: set it to 1024"),
    ],
)
def test_what_cannot_work_stops_the_run(ready: list[str], overrides: list[str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        compose([*ready, *overrides])
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([FP8, "algorithm.rollout_correction.rollout_is=null"], "the engine samples from rounded weights, and nothing"),
        (["rollout.max_model_len=600"], "answers to long prompts end early"),
        (["rollout.min_p=0.1"], "rollout.min_p=0.1: the engine's log-probs are those of the changed distribution"),
        (["rollout.repetition_penalty=1.1"], "rollout.repetition_penalty=1.1: the engine's log-probs"),
        (["rollout.top_k=20"], "the engine's log-probs are those of the changed distribution"),
        (["actor.ppo_max_token_len_per_gpu=1000"], "a longer sequence gets a pass of its own"),
        (["rollout.do_sample=false"], "the 8 answers to a prompt are the same"),
        (["rollout.val_kwargs.n=4"], "greedy answers are all the same"),
        ([*SERVER, "rollout.gpu_memory_utilization=0.9"], "the policy has 10% of the memory"),
        (["trainer.test_freq=5"], "has no effect without data.val_files"),
        (["trainer.total_training_steps=9", "actor.optim.lr_warmup_steps=10"], "never reaches its peak"),
    ],
)
def test_what_may_be_meant_is_said(ready: list[str], overrides: list[str], expected: str) -> None:
    assert any(expected in note for note in resolve([*ready, *overrides]).notes)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [FP8, DRAFTS, "rollout.val_kwargs.top_p=0.9"],
        ["trainer.total_training_steps=-1"],  # as null
        ["rollout.max_model_len=1024", "actor.ppo_max_token_len_per_gpu=1024"],
        ["rollout.val_kwargs={n: 4, do_sample: true, temperature: 1.0}"],
        [*SERVER, "rollout.gpu_memory_utilization=0.5"],
        ["actor.use_dynamic_bsz=false", "actor.ppo_max_token_len_per_gpu=10"],
        ["rollout.do_sample=false", "algorithm.adv_estimator=reinforce_plus_plus"],
    ],
)
def test_what_fits_says_nothing(ready: list[str], overrides: list[str]) -> None:
    assert resolve([*ready, *overrides]).notes == []
