"""Further mistakes, most in the value of one setting: what is typed, and what the line says."""

from tests.cli.mistakes import MODEL, TRAIN, Mistake, jsonl, row, rows

VALUES = """
actor.optim.lr=-1 | must be at least 0
actor.optim.lr=1 | Adam changes each weight by about that much
critic.optim.lr=1 | critic.optim.lr=1.0: Adam
actor.optim.lr=fast | must be float
actor.optim.betas=[0.9] | write two numbers
actor.optim.betas=[0.9,1.5] | below 1
actor.optim.weight_decay=-1 | must be at least 0
actor.optim.lr_warmup_steps=1.5 | a share of all steps as 0.1
actor.optim.min_lr_ratio=2 | must be from 0 to 1
actor.grad_clip=0 | must be over 0
actor.clip_ratio=-0.2 | must be at least 0
actor.clip_ratio_c=0.5 | must be over 1
actor.kl_loss_coef=-1 | must be at least 0
actor.entropy_coeff=abc | must be float
actor.policy_loss.loss_mode=gpso | did you mean gspo?
actor.policy_loss.loss_mode=loss.py | loss.py:NAME
actor.policy_loss.loss_mode=loss.py:mine | loss.py does not exist
actor.policy_loss.loss_mode=reward.py:mine | actor.policy_loss.loss_mode: * has no 'mine': it has compute_score
actor.policy_loss.options.clip_cov_ratio=abc | must be a number
actor.policy_loss.options.nope=1 | vanilla has no such option
actor.loss_agg_mode=mean | token-mean
actor.ppo_epochs=0 | must be at least 1
actor.ulysses_sequence_parallel_size=0 | must be over 0
algorithm.gamma=2 | must be from 0 to 1
algorithm.lam=-1 | must be from 0 to 1
algorithm.kl_penalty=k9 | choose full, kl
algorithm.kl_ctrl.kl_coef=-1 | must be at least 0
algorithm.adv_estimator=reward.py:nope | has no 'nope': it has compute_score
algorithm.adv_estimator=gdpo | set reward.functions, or algorithm.gdpo_reward_keys
algorithm.filter_groups.keep=nope | choose differing
algorithm.rollout_correction.rollout_is=word | choose token or sequence
algorithm.rollout_correction.rollout_is_threshold=0.1 | must be at least 1
model.lora_rank=-1 | must be at least 0
model.lora_rank=8 model.lora_alpha=0 | must be over 0
model.dtype=fp8 | choose float32 or bfloat16
model.external_lib=nope | model.external_lib: nope does not import
model.external_lib=nope.py | nope.py does not exist
model.override_config=3 | must be mapping
model.tokenizer_path=./tok | there is no such folder
data.max_prompt_length=0 | must be at least 1
data.max_response_length=0 | must be at least 1
data.train_batch_size=0 | must be at least 1
data.train_max_samples=2 | the 2 rows there are
data.prompt_key=question | has no column 'question'; it has prompt
data.reward_fn_key=source | has no column 'source'; it has prompt
data.truncation=top | choose error, left, right or middle
data.row_sampler=nope | choose shuffled, in_order
data.row_sampler=nope.py:f | nope.py does not exist
data.custom_cls.path=nope.py | nope.py does not exist
data.custom_cls.name=Rows | set both
data.val_files=val.jsonl | `agentrl data --help`
data.val_files=3 | 3 is not a path
data.train_files=zeilen_für_alle.jsonl | zeilen_für_alle.jsonl does not exist (looked in
data.train_files=s4://bucket/rows.jsonl | fsspec knows no s4://
data.train_files=cuont:3 | choose tasks, swe, env
data.train_files=tasks:nofolder | no such folder
data.train_files=env:marble2 | environments.yaml does not exist
data.val_batch_size=0 | must be at least 1
rollout.n=0 | must be at least 1
rollout.top_p=2 | must be over 0 and at most 1
rollout.top_k=-5 | must be at least 1
rollout.min_p=2 | must be from 0
rollout.repetition_penalty=0 | must be over 0
rollout.val_kwargs.temperature=-1 | must not be below 0
rollout.max_model_len=10 | leaves no room
rollout.max_num_seqs=0 | must be at least 1
rollout.trajectory_timeout=0 | must be over 0
rollout.infra_retries=-1 | must be at least 0
rollout.max_infra_drop_share=2 | must be from 0 to 1
rollout.gpu_memory_utilization=1.5 | at most 0.95
rollout.engine_kwargs=3 | must be mapping
rollout.name=nope.py:Engine | nope.py does not exist
rollout.weight_sync=pigeon | choose auto, files
rollout.multi_turn.format=xml | hermes
rollout.multi_turn.max_assistant_turns=-1 | must be at least 0
rollout.multi_turn.tool_response_unit=words | choose characters or tokens
rollout.agent.num_workers=-1 | must be at least 0
rollout.agent.default_agent_loop=loop.Nope | has no class 'Nope': correct the path
rollout.agent.default_agent_loop=nofile.Loop | No module named 'nofile'
data.val_sets={a:{files:rows.jsonl,agent:singel_turn}} | agent loop 'singel_turn' is unknown
data.val_sets={a:{file:rows.jsonl}} | unknown key 'file': did you mean files?
rollout.containers.provider=dokcer | did you mean docker?
reward.custom_reward_function.name=score | has no 'score': it has compute_score
reward.custom_reward_function.reward_kwargs.alpha=1 | make it compute_score(
reward.custom_reward_function.reward_kwargs.ground_truth=1 | is set by agentrl itself
reward.reward_manager.name=nope | no such manager; use naive
reward.reward_manager.name=batch | make it compute_score(data_sources
reward.timeout=0 | must be over 0
reward.num_workers=0 | must be over 0
reward.on_failure=retry | choose mask or zero
reward.functions.a.path=no.py | no.py does not exist
trainer.total_epochs=0 | must be over 0
trainer.nnodes=0 | must be at least 1
trainer.n_gpus_per_node=6400 | lower it, or join a Ray cluster
trainer.device=gpu | choose auto, cpu or cuda
trainer.logger=[console,wnadb] | did you mean wandb?
trainer.save_freq=sometimes | must be int or null
trainer.max_rollout_gap=-1 | must be above 0
trainer.critic_warmup=-1 | must be at least 0
trainer.default_local_dir=s3://bucket/run | trainer.default_hdfs_dir=s3://bucket/run gets copies
trainer.default_local_dir=reward.py | name a writable folder
trainer.default_hdfs_dir=s4://x | fsspec knows no s4://
trainer.experiment_name= | name the run
trainer.profile_steps=5 | must be list of int
trainer.callbacks=[nope.py:f] | nope.py does not exist
ray_init.num_cpus=0 | must be at least 1
rollout.n==4 | with one =
rollout.n=4,8 | one run takes one value
=4 | with one =
~rollout.nn | did you mean rollout.n?
"""
"""A setting, and what the line says besides its key; a * stands for a path."""


def _of(line: str) -> Mistake:
    typed, _, says = line.partition(" | ")
    culprit, _, rest = says.partition("*")
    return Mistake(typed, f"{TRAIN} {typed}", culprit.strip(), rest.strip())


OTHERS = [
    Mistake(
        "rows without a ground truth",
        TRAIN,
        "no ground truth",
        "a column 'solution': rename it",
        rows(*[{"prompt": "a", "solution": "b"}] * 8)
        | {
            "reward.py": "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
            "    return float(solution_str == ground_truth)\n"
        },
    ),
    Mistake(
        "a local model that is not there",
        TRAIN.replace("=model ", "=models/smol "),
        "models/smol does not exist",
        "there is no such folder",
    ),
    Mistake("a misspelt model", TRAIN.replace("=model ", "=./modle "), "./modle", "did you mean model?"),
    Mistake(
        "an output that is an input",
        f"sft {MODEL} data.train_files=rows.jsonl trainer.output_dir=model",
        "trainer.output_dir=model is the input model.path=model",
        "name another place",
    ),
    Mistake("tools test of nothing", "tools test", "name a YAML file", "--functions"),
    Mistake("tools test of Python", "tools test search_tool.py", "is Python", "--functions search_tool.py"),
    Mistake("tools test, file missing", "tools test no.yaml", "tools test: no.yaml", "does not exist"),
    Mistake("tools test of another tool", "tools test tools.yaml --only serach", "--only serach", "search"),
    Mistake(
        "sft with a rate for nothing", f"sft {MODEL} data.train_files=rows.jsonl optim.lr=1", "optim.lr=1.0", "1e-6"
    ),
    Mistake(
        "sft, frequency in words",
        f"sft {MODEL} data.train_files=rows.jsonl trainer.save_freq=often",
        "trainer.save_freq=often",
        "after_each_epoch",
    ),
    Mistake(
        "generate of rows that are missing",
        f"generate {MODEL} data.path=no.jsonl data.output_path=o.jsonl",
        "no.jsonl does not exist",
        "looked in",
    ),
    Mistake(
        "eval, reward missing",
        "eval data.path=answers.jsonl reward.custom_reward_function.path=no.py",
        "no.py does not exist",
        "looked in",
    ),
    Mistake("gateway without a model", "gateway --out seen.jsonl rollout.top_p=3", "rollout.top_p=3", "at most 1"),
    Mistake(
        "rows of two kinds",
        TRAIN,
        "rows.jsonl:2",
        "no column 'prompt'",
        {"rows.jsonl": jsonl(row(), {"qestion": "a"})},
        slow=False,
    ),
]
FURTHER = [*map(_of, VALUES.strip().splitlines()), *OTHERS]
