"""A key reaches the code that reads it: with another value, what that code makes comes out otherwise.

These are the keys whose effect needs a server, several machines, a GPU, or a whole run; here each has the one function
that reads it. A probe gives something that can be compared; where a key is handed to a class, it stops there and gives
the arguments (`arguments_of`).
"""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.config import compose
from agentrl.config.keys import schema_keys
from agentrl.config.schema import Config
from agentrl.config.schema.commands import SCHEMAS
from agentrl.config.schema.evaluation import EvalConfig
from agentrl.config.schema.sft import SftConfig
from agentrl.core.errors import UserError
from agentrl.training import Batch
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory
from tests.config.changed import unchanged
from tests.config.test_effects import CASES as EFFECTS
from tests.config.test_effects import model, with_settings  # noqa: F401 - `model` is a fixture
from tests.training.tiny import random_batch

pytestmark = pytest.mark.integration

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ROWS = [Row(uid=str(i), prompt=[{"role": "user", "content": "x"}]) for i in range(6)]
Probe = Callable[[Any], Any]


class Reached(BaseException):
    """Ends a probe with the arguments of a call."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.found = arguments, named


def arguments_of(place: str, name: str, work: Callable[[], Any]) -> Any:
    """The arguments with which `work()` calls what is `name` in the module `place`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{place}.{name}", _raised)
        try:
            work()
        except Reached as reached:
            return reached.found
    raise AssertionError(f"{place}.{name} is not called")


def _raised(*arguments: Any, **named: Any) -> Any:
    raise Reached(*arguments, **named)


def bare(cls: type, /, **attributes: Any) -> Any:
    """An object of a class without its constructor."""
    made = object.__new__(cls)
    vars(made).update(attributes)
    return made


def or_error(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except UserError as error:
        return str(error)


# Engines.


def server(config: Config) -> Any:
    from agentrl.engines.backends import server_backend
    from agentrl.engines.sharing import Sharing

    backend: Any = server_backend("vllm", config, "cuda", Sharing(apart=True, replicas=1, per_gpu=1))
    return backend.command(1), backend.environment()


def server_client(config: Config) -> Any:
    from agentrl.engines.servers.client import ServerClient

    async def score(http: Any, ids: Any, media: Any, first: int, k: int, timeout: Any, adapter: str) -> Any:
        return timeout

    async def pick(key: str) -> Any:
        return SimpleNamespace(http=None)

    settings = SimpleNamespace(rollout=config.rollout, max_model_len=1)
    backend: Any = SimpleNamespace(settings=settings, adapter=str, score=score)
    client = ServerClient(backend, SimpleNamespace(pick=pick))  # type: ignore[arg-type]
    return asyncio.run(client.score([1], (), 1, 0, key="")), client.router and client.router.url


def weight_link(config: Config) -> Any:
    from agentrl.engines.sending import transport

    weights: Any = SimpleNamespace(module=SimpleNamespace(config=None))
    return arguments_of("agentrl.engines.sending", "Link", lambda: transport(config, weights, "files", CPU, Path()))[1]


def servers_beside_ranks(config: Config) -> int:
    placement = pytest.importorskip("agentrl.runtime.ray.placement")
    return len(placement.placements_on_ranks([SimpleNamespace(node="a0" * 28)], config.rollout, "cpu"))


def trainer_memory(config: Config) -> float:
    from agentrl.engines.sharing import Sharing, trainer_bytes

    return trainer_bytes(config, Sharing(apart=False, replicas=1, per_gpu=1, fits=True))


# Rollouts.


def tokenizer(config: Any) -> Any:
    from agentrl.training import load_tokenizer

    return load_tokenizer(config.model)


def conversation(config: Config) -> Any:
    from agentrl.rollout.building import rollout_context

    return rollout_context(config, tokenizer(config), None, None)  # type: ignore[arg-type]  # nothing is asked of them


def limits(config: Config) -> Any:
    return conversation(config).limits


def prompt(config: Config) -> Any:
    return conversation(config).chat.prompt([{"role": "user", "content": "hi"}], None)


def shortened(config: Config) -> str:
    return str(conversation(config).tools.shorten("12345678ä " * 9))


def check(config: Config) -> Any:
    return conversation(config).chat.check


def processor(config: Config) -> Any:
    return vars(conversation(config).chat.processor)


def callback(config: Config) -> Any:
    return conversation(config).on_turn


def scheduler(config: Config) -> Any:
    from agentrl.rollout.rollouts import Rollouts

    make = lambda: Rollouts(config, tokenizer(config), None, None, scored=False)  # type: ignore[arg-type]  # noqa: E731
    return arguments_of("agentrl.rollout.rollouts", "Scheduler", make)[1]["retry_timeouts"]


def validation(config: Config) -> Any:
    from agentrl.rollout.rollouts import Rollouts

    rollouts = bare(Rollouts, config=config)
    rollouts._make = lambda rows, n, sampling, *_, **__: (n, sampling)
    return rollouts.validate([], 0, None)


def drawing(config: Config) -> Any:
    from agentrl.rollout.rollouts import Rollouts

    return bare(Rollouts, config=config)._sampling


def turn_rewards(config: Config) -> Any:
    from agentrl.rollout.sampler import Sampler

    return Sampler(config, None, None, None).score.keywords  # type: ignore[arg-type, attr-defined]


def sandbox(config: Config) -> Any:
    from agentrl.rollout.building import sandbox_for

    return arguments_of("agentrl.rollout.building", "Sandbox", lambda: sandbox_for(config))


# Rewards.


def overlong(config: Config) -> Any:
    from agentrl.rewards.scorer import Scorer

    answered = Trajectory(Row("row", []), "0/row/0", 0, reward=1.0)
    asyncio.run(Scorer(None, config.reward, str, max_response_length=10).score(answered))
    return answered.reward_extra


def reward_function(config: Config) -> Any:
    from agentrl.rollout.building import scorer

    place = "agentrl.rollout.building"
    return arguments_of(place, "load_reward_function", lambda: scorer(config, None, None))  # type: ignore[arg-type]


def judge(config: Config) -> Any:
    from agentrl.rollout.building import judging

    return arguments_of("agentrl.training.model.reward_model", "Judge", lambda: judging(config, None, None))[1]


def judge_worker(config: Config) -> Any:
    from agentrl.training.model.reward_model import RewardWorker

    judge = SimpleNamespace(vocabulary=9)
    return RewardWorker(config.reward.reward_model, judge, policy_vocabulary=9).max_tokens


def judge_files(config: Config) -> Any:
    from agentrl.training.model.reward_model import Judge

    make = lambda: Judge(config.reward.reward_model, device=CPU)  # noqa: E731
    return arguments_of("agentrl.training.model.loading.AutoConfig", "from_pretrained", make)[1]


# Training.


def learner(config: Config) -> Any:
    from agentrl.training.learner import Learner

    found = Learner(config)
    found.prepare(10)
    return found


def loaded_policy(config: Config) -> Any:
    return or_error(lambda: [(n, p.dtype, p.requires_grad) for n, p in learner(config).model.module.named_parameters()])


def activations(config: Config) -> Any:
    return learner(config).model.offloads_activations


def background(config: Config) -> bool:
    return learner(config).saver.thread is not None


def optimizer_memory(config: Config) -> bool:
    return learner(config).actor.optimizer.copies is not None


def reference_memory(config: Config) -> bool:
    return learner(config).reference.offload


def profiled(config: Config) -> Any:
    return learner(config).profiling.steps


def resumed_rows(config: Config, folder: Path) -> Any:
    one = learner(config)
    one.save(folder / "checkpoints", 1, {"rows": {"epoch": 3}})
    return one.load(folder / "checkpoints" / "global_step_1")[1].get("rows")


def parts(config: Config) -> Any:
    from agentrl.training import ComputeAdvantages

    return ComputeAdvantages(config.algorithm, config.reward, seed=0).components


def drawn(config: Config) -> Any:
    from agentrl.training.update.advantages import ComputeAdvantages

    batch: Batch = random_batch([4, 5, 6, 7, 8, 9], seed=0)
    batch.rewards = torch.linspace(0, 3, batch.num_tokens) * batch.mask
    return ComputeAdvantages(config.algorithm, config.reward, seed=0).filtered(batch, 1).lengths


def units(config: Any) -> Any:
    """How FSDP shards a unit: whether it is freed, its number formats, whether it is in CPU memory."""
    from agentrl.training.parallel.ranks import Ranks
    from agentrl.training.parallel.sharding import shard

    fsdp_config = config.fsdp_config if isinstance(config, SftConfig) else config.actor.fsdp_config
    device = GPU if fsdp_config.offload_policy else CPU
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentrl.training.parallel.fsdp.WeightLoader", lambda *_: None)
        loaded: Any = SimpleNamespace(module=torch.nn.Linear(1, 1), blocks=list)
        work = lambda: shard(loaded, Ranks(world=2), fsdp_config, device=device)  # noqa: E731
        arguments, named = arguments_of("agentrl.training.parallel.fsdp", "wrapper", work)
    return arguments[0].reshard_after_forward, arguments[2], named


def joined(config: Any) -> Any:
    """The arguments with which a rank joins the others."""
    rank, all_ranks = (pytest.importorskip(f"agentrl.runtime.ray.{name}") for name in ("rank", "all_ranks"))
    worker = bare(all_ranks.SftRank if isinstance(config, SftConfig) else rank.Rank, config=config)
    worker._join_ranks = _raised
    try:
        worker._learner(2)
    except Reached as reached:
        return reached.found


def spawned(config: Config) -> Any:
    pytest.importorskip("ray")
    from agentrl.runtime.ray import worker_group

    place = "agentrl.runtime.ray.worker_group"
    with ExitStack() as stack:
        work = lambda: worker_group.spawn(int, config, "trainer", 1, 1, gpus=False, stack=stack)  # noqa: E731
        return arguments_of(place, "reserve", work)[1]["timeout"]


def ranks_under_nsight(config: Config) -> Any:
    servers = pytest.importorskip("agentrl.runtime.ray.servers")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "on_gpus"):
            patch.setattr(servers, name, lambda *_: False)
        return arguments_of("agentrl.runtime.ray.servers", "spawn", lambda: servers.start_workers(config))[1]["nsight"]


def timeline(config: Config) -> int:
    cluster = pytest.importorskip("agentrl.runtime.ray.cluster")
    ends: list[Any] = []
    stack: Any = SimpleNamespace(callback=lambda *end: ends.append(end[1:]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.init", lambda *_, **__: None)
        patch.setattr("ray.is_initialized", lambda: False)
        cluster.connect(config.ray_init, stack)
    return len(ends)


def pruned_critics(config: Config) -> Any:
    from agentrl.training.checkpoint.saving import Saver
    from agentrl.training.parallel.ranks import ALONE

    saver = Saver(config.trainer, ALONE, background=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentrl.training.checkpoint.folders.prune", lambda *_, **__: [])
        place = "agentrl.training.checkpoint.folders"
        return arguments_of(place, "prune_part", lambda: saver._follow_up(Path("global_step_1")))


def restarts(config: Config, folder: Path) -> bool:
    from agentrl.training.checkpoint.restarts import Restarts, WorkerDied

    try:
        Restarts(config, folder).after(WorkerDied("rank 1 died"))
    except WorkerDied:
        return False
    return True


# Rows.


def splits(config: Config) -> Any:
    from agentrl.data.splits import Reader

    found = Reader(config, None, lambda row: 1, train=ROWS, val=ROWS).splits()
    return [row.uid for row in found.train.next_batch()], [
        [row.uid for row in part] for one in found.validation for part in one.batches
    ]


def val_set(config: Config, folder: Path) -> str:
    from agentrl.config.schema.data import ValSet
    from agentrl.data.splits import Reader

    (folder / "rows.jsonl").write_text('{"prompt": [{"role": "user", "content": "hi"}]}\n')
    rows = str(folder / "rows.jsonl")
    config.data.val_sets = {name: ValSet(**one, files=rows) for name, one in config.data.val_sets.items()}
    return repr(Reader(config, None, lambda row: 1, train=ROWS).validation())


def media_row(config: Config, folder: Path) -> str:
    from agentrl.data import load_dataset

    row = {"prompt": [{"role": "user", "content": "<video> what?"}], "videos": ["a.mp4"], "films": ["b.mp4"]}
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return repr(load_dataset(config.data, str(folder / "rows.jsonl"), None)[0])


CALL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
RECORD = {
    "messages": TALK,
    "talk": [*TALK, *TALK],
    "functions": [CALL],
    "thinks": True,
    "prompt": "What?",
    "response": "That.",
}
NESTED = {"prompt": {"question": "What?"}, "response": {"answer": "That."}}


def supervised(config: SftConfig, folder: Path, record: dict[str, Any]) -> Any:
    from agentrl.chat import Chat
    from agentrl.training.sft.conversations import read_conversations

    (folder / "rows.jsonl").write_text(json.dumps(record) + "\n")
    config.data.train_files = str(folder / "rows.jsonl")
    named = tokenizer(config)
    named.chat_template += "{{ enable_thinking | default('') }}"
    chat = Chat(named, check="disable", template_kwargs=config.data.apply_chat_template_kwargs)
    return or_error(lambda: [found.ids for found in read_conversations(config.data, chat).ledgers])


def supervised_rows(config: SftConfig, folder: Path) -> Any:
    return supervised(config, folder, RECORD)


def supervised_pairs(config: SftConfig, folder: Path) -> Any:
    return supervised(config, folder, NESTED)


def supervised_run(config: SftConfig) -> Any:
    from agentrl.training.parallel.ranks import ALONE
    from agentrl.training.sft.run import Run

    return bare(Run, config=config, ranks=ALONE, model=None, total=9, device=CPU)


def sft_optimizer(config: SftConfig) -> Any:
    place = "agentrl.training.sft.run"
    return arguments_of(place, "Optimizer", lambda: supervised_run(config)._sft_model(1))[1]


def sft_rates(config: SftConfig) -> list[float]:
    from agentrl.training.update.optimizer import Optimizer

    optimizer = Optimizer(torch.nn.Linear(2, 2), config.optim, grad_clip=1.0, total_steps=10)
    rates = []
    for _ in range(10):
        rates.append(optimizer.lr)
        optimizer.advance()
    return rates


def sft_pruned(config: SftConfig) -> Any:
    from agentrl.training.checkpoint.saving import Saver
    from agentrl.training.parallel.ranks import ALONE
    from agentrl.training.sft.run import saving_of

    saver = Saver(saving_of(config.trainer, 1), ALONE, background=False)
    place = "agentrl.training.checkpoint.folders"
    return arguments_of(place, "prune", lambda: saver._follow_up(Path("missing", "global_step_1")))[0][1]


def loggers(config: SftConfig) -> Any:
    from agentrl.sft import _loggers

    return arguments_of("agentrl.sft", "open_loggers", lambda: _loggers(config, 0, ""))[0][1].project


# Evaluation.


def stored_scores(config: EvalConfig) -> Any:
    from agentrl.evaluation.stored import answered

    record = {"responses": ["a"], "reward_model": {"ground_truth": "a"}, "scores": [1.0], "marks": [0.5]}
    return answered({"data_source": "x"} | record, config.data, "1").scores


def bounds(config: EvalConfig) -> Any:

    from agentrl.tracking.estimates import RowScores, report

    rows = [RowScores("x", scores=[float(i)], passed=[True]) for i in range(9)]
    return report("x", rows, config.evaluation).mean


BATCH = ("data.train_batch_size=6",)
SERVER = (f"rollout.engine_python={sys.executable}",)
SHORT = ("rollout.multi_turn.max_tool_response_length=30",)
REWARDED = ("reward.custom_reward_function.path=a.py",)
OFFLOADED = ("actor.fsdp_config.reshard_after_forward=true",)
FILLED = ("model.chat_template=MARKED",)
JUDGED = ("reward.reward_model.enable=true", "reward.reward_model.model.path=MODEL")
GDPO = ("algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[right,short]")
PFPPO = ("algorithm.use_pf_ppo=true",)
TRAINING: dict[str, tuple[Callable[..., Any], str, tuple[str, ...]]] = {
    "actor.checkpoint.async_save": (background, "true", ()),
    "actor.checkpoint.load_contents": (resumed_rows, "[model, optimizer]", ()),
    "actor.freeze_vision_tower": (loaded_policy, "true", ()),
    "actor.fsdp_config.expert_parallel_size": (joined, "2", ()),
    "actor.router.aux_loss_coef": (loaded_policy, "0.1", ()),
    "actor.router.bias_update": (loaded_policy, "0.1", ()),
    "actor.router.freeze": (loaded_policy, "true", ()),
    "actor.fsdp_config.mixed_precision.reduce_dtype": (units, "bfloat16", ()),
    "actor.fsdp_config.offload_policy": (units, "true", OFFLOADED),
    "actor.fsdp_config.optimizer_offload": (optimizer_memory, "true", ()),
    "actor.fsdp_config.param_offload": (trainer_memory, "true", ()),
    "actor.ulysses_sequence_parallel_size": (joined, "2", ()),
    "algorithm.gdpo_reward_keys": (parts, "[right,brief]", GDPO),
    "algorithm.gdpo_reward_weights": (parts, "[1.0,0.5]", GDPO),
    "algorithm.pf_ppo.reweight_method": (drawn, "max_min", PFPPO),
    "algorithm.pf_ppo.weight_pow": (drawn, "90", PFPPO),
    "data.apply_chat_template_kwargs": (prompt, "{mark: on}", FILLED),
    "data.mm_processor_kwargs": (processor, "{size: 9}", ()),
    "data.row_sampler": (splits, "in_order", BATCH),
    "data.seed": (splits, "2", BATCH),
    "data.val_batch_size": (splits, "2", BATCH),
    "data.val_sets": (val_set, "{hard: {n: 4, temperature: 1.0, agent: single_turn}}", ()),
    "data.validation_shuffle": (splits, "true", BATCH),
    "data.video_key": (media_row, "films", ()),
    "model.enable_activation_offload": (activations, "true", ()),
    "model.target_parameters": (loaded_policy, "all-experts", ("model.lora_rank=2",)),
    "model.trust_remote_code": (server, "true", SERVER),
    "ray_init.timeline_json_file": (timeline, "a.json", ()),
    "ref.fsdp_config.param_offload": (reference_memory, "true", ("actor.use_kl_loss=true",)),
    "reward.custom_reward_function.reward_kwargs": (reward_function, "{a: 1}", REWARDED),
    "reward.interaction_turn_weight": (turn_rewards, "0.5", ()),
    "reward.overlong_buffer.log": (overlong, "false", ("reward.overlong_buffer.enable=true",)),
    "reward.reward_model.device": (judge, "cuda:1", JUDGED),
    "reward.reward_model.forward_max_token_len_per_gpu": (judge_worker, "9", JUDGED),
    "reward.reward_model.model.trust_remote_code": (judge_files, "true", JUDGED),
    "reward.sandbox_fusion.max_concurrent": (sandbox, "3", ()),
    "reward.sandbox_fusion.memory_limit_mb": (sandbox, "99", ()),
    "rollout.disable_log_stats": (server, "false", SERVER),
    "rollout.dtype": (server, "float16", SERVER),
    "rollout.enable_chunked_prefill": (server, "false", SERVER),
    "rollout.enforce_eager": (server, "true", SERVER),
    "rollout.engine_kwargs": (server, "{vllm: {block_size: 32}}", SERVER),
    "rollout.quantization": (server, "fp8", SERVER),
    "rollout.speculative_algorithm": (server, "ngram", SERVER),
    "rollout.limit_images": (limits, "2", ()),
    "rollout.load_format": (server, "auto", SERVER),
    "rollout.max_num_batched_tokens": (server, "99", SERVER),
    "rollout.multi_turn.completion_callback": (callback, "json.dumps", ()),
    "rollout.multi_turn.max_assistant_turns": (limits, "2", ()),
    "rollout.multi_turn.max_consecutive_errors": (limits, "2", ()),
    "rollout.multi_turn.max_parallel_calls": (limits, "2", ()),
    "rollout.multi_turn.max_user_turns": (limits, "2", ()),
    "rollout.multi_turn.tokenization_sanity_check_mode": (check, "disable", ()),
    "rollout.multi_turn.tool_response_truncate_side": (shortened, "left", SHORT),
    "rollout.multi_turn.tool_response_unit": (shortened, "tokens", SHORT),
    "rollout.replicas": (servers_beside_ranks, "2", ()),
    "rollout.request_timeout": (server_client, "9", ()),
    "rollout.retry_timeouts": (scheduler, "true", ()),
    "rollout.router_url": (server_client, "http://a", ()),
    "rollout.tensor_model_parallel_size": (server, "2", SERVER),
    "rollout.update_weights_bucket_megabytes": (weight_link, "9", ()),
    "rollout.val_kwargs.do_sample": (validation, "false", ("rollout.val_kwargs.temperature=0.5",)),
    "rollout.val_kwargs.temperature": (validation, "0.5", ()),
    "rollout.min_p": (drawing, "0.1", ()),
    "rollout.repetition_penalty": (drawing, "1.2", ()),
    "rollout.val_kwargs.min_p": (validation, "0.1", ()),
    "rollout.val_kwargs.repetition_penalty": (validation, "1.2", ()),
    "rollout.val_kwargs.top_k": (validation, "5", ()),
    "rollout.val_kwargs.top_p": (validation, "0.5", ()),
    "trainer.max_critic_ckpt_to_keep": (pruned_critics, "1", ()),
    "trainer.max_restarts": (restarts, "0", ()),
    "trainer.profile_steps": (profiled, "[2]", ()),
    "trainer.ray_wait_register_center_timeout": (spawned, "9", ()),
    "trainer.val_only": (loaded_policy, "true", ("model.dtype=bfloat16",)),
    "trainer.worker_nsight_options": (ranks_under_nsight, "{t: cuda}", ()),
}  # fmt: skip
SUPERVISED: dict[str, tuple[Callable[..., Any], str, tuple[str, ...]]] = {
    "data.conversations": (supervised_rows, "false", ()),
    "data.enable_thinking_default": (supervised_rows, "true", ()),
    "data.enable_thinking_key": (supervised_rows, "thinks", ()),
    "data.messages_key": (supervised_rows, "talk", ()),
    "data.prompt_dict_keys": (supervised_pairs, "[question]", ()),
    "data.response_dict_keys": (supervised_pairs, "[answer]", ("data.prompt_dict_keys=[question]",)),
    "data.tools_key": (supervised_rows, "functions", ()),
    "fsdp_config.expert_parallel_size": (joined, "2", ()),
    "fsdp_config.fsdp_size": (joined, "2", ()),
    "fsdp_config.mixed_precision.reduce_dtype": (units, "bfloat16", ()),
    "fsdp_config.offload_policy": (units, "true", ("fsdp_config.reshard_after_forward=true",)),
    "fsdp_config.optimizer_offload": (sft_optimizer, "true", ()),
    "fsdp_config.reshard_after_forward": (units, "false", ()),
    "optim.min_lr_ratio": (sft_rates, "0.5", ()),
    "optim.num_cycles": (sft_rates, "3", ()),
    "optim.stable_ratio": (sft_rates, "0.1", ("optim.lr_scheduler_type=wsd",)),
    "trainer.grad_clip": (sft_optimizer, "9", ()),
    "trainer.max_ckpt_to_keep": (sft_pruned, "9", ()),
    "trainer.project_name": (loggers, "mine", ()),
    "trainer.ulysses_sequence_parallel_size": (joined, "2", ()),
}
EVALUATION: dict[str, tuple[Callable[..., Any], str, tuple[str, ...]]] = {
    "data.score_key": (stored_scores, "marks", ()),
    "evaluation.confidence": (bounds, "0.5", ()),
}
TABLES = {"train": (Config, TRAINING), "sft": (SftConfig, SUPERVISED), "eval": (EvalConfig, EVALUATION)}
CASES = [(command, key) for command, (_, table) in TABLES.items() for key in table]
KEYS = {key for _, key in CASES}


def outcome(probe: Callable[..., Any], config: Any, folder: Path) -> Any:
    folder.mkdir()
    return probe(config, folder) if len(signature(probe).parameters) > 1 else probe(config)


@pytest.mark.parametrize(("command", "key"), CASES, ids=[f"{command}-{key}" for command, key in CASES])
def test_another_value_reaches_its_reader(command: str, key: str, model: Path, tmp_path: Path) -> None:  # noqa: F811
    schema, table = TABLES[command]
    probe, value, base = table[key]
    start = compose([f"model.path={model}", "trainer.device=cpu"], config_name=command, schema=schema, checks=())
    template = tokenizer(start).chat_template + "{{ mark | default('') }}"
    words = {"MODEL": str(model), "MARKED": json.dumps(template)}
    settings = [f"{name}={words.get(text, text)}" for name, _, text in (each.partition("=") for each in base)]
    one, two = (with_settings(start, [*settings, *more]) for more in ((), (f"{key}={value}",)))
    assert outcome(probe, one, tmp_path / "a") != outcome(probe, two, tmp_path / "b")


def test_every_key_is_changed_by_a_test() -> None:
    """A new key enters a table, or gets a test in the room that reads it."""
    left = {path for schema in SCHEMAS.values() for path in unchanged(schema, schema_keys(schema))}
    assert not left - EFFECTS.keys() - KEYS
    assert EFFECTS.keys() | KEYS <= {path for schema in SCHEMAS.values() for path in schema_keys(schema)}
