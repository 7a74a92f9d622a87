"""The open edges: what a researcher can add to agentrl. Each registry is a decorator under its second name.

A built-in object stands under the same decorator in one of the registry's places, and keeps the same contract. Places
are files and folders of the package, whose text is read: nothing here imports a room. To open another edge, add a
registry here and its key to `agentrl.config.choices`.
"""

from typing import Any

from agentrl.core.contracts import ClassContract, EitherContract, FunctionContract
from agentrl.core.registry import Registry


def is_server(engine: Any) -> bool:
    """Whether an engine is the backend of a server, and not an engine in this process."""
    return hasattr(engine, "command")


def runs_the_model(kind: Any) -> bool:
    """Whether environments of a kind run whole rollouts, and are not stepped."""
    return hasattr(kind, "program")


HOOKS = ("start", "step", "validation", "checkpoint", "end")
"""Methods of a callback."""


def has_hooks(callback: Any) -> bool:
    """Whether a callback has hooks, and is not a function that is called with each step."""
    return isinstance(callback, type) or not callable(callback) or any(hasattr(callback, hook) for hook in HOOKS)


def brings_rows(kind: Any) -> bool:
    """Whether environments of a kind have rows of their own, each with an agent loop."""
    return hasattr(kind, "rows")


ESTIMATOR_COLUMNS = ("rewards", "mask", "cu_seqlens", "trajectory", "group")

ADVANTAGES = advantage_estimator = Registry[Any](
    "an advantage estimator",
    places=("algorithms/advantages",),
    contract=FunctionContract(
        ESTIMATOR_COLUMNS,
        ("values", "baselines", "components", "component_weights", "gamma", "lam", "norm_by_std", "config"),
    ),
    marks=("grouped", "apart", "lines"),
)
"""`algorithm.adv_estimator`. `config` is the section `algorithm`. Mark `grouped`: with one trajectory a prompt all its
advantages are 0. Mark `apart`: the advantages of a prompt do not depend on other prompts. Mark `lines`: it works on
lines too, entries that stand for several tokens each (`agentrl.trajectory.outline`); "undiscounted": only with `gamma`
1."""

POLICY_LOSS_OPTIONS = {
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "clip_cov_ratio": 0.0002,
    "clip_cov_lb": 1.0,
    "clip_cov_ub": 5.0,
    "kl_cov_ratio": 0.0002,
    "ppo_kl_coef": 0.1,
}
"""Options that any policy loss may name, with their defaults; `actor.policy_loss.options` sets them."""

POLICY_LOSS_OFFERED = (
    *("low", "high", "c", "config"),
    *("mask", "cu_seqlens", "chosen", "weights", "importance", "step"),
)

POLICY_LOSSES = policy_loss = Registry[Any](
    "a policy loss",
    places=("algorithms/losses",),
    contract=FunctionContract(("logprobs", "old_logprobs", "advantages"), (*POLICY_LOSS_OFFERED, *POLICY_LOSS_OPTIONS)),
    marks=("by_sequence", "choose"),
)
"""`actor.policy_loss.loss_mode`. `config` is the section `actor`. Marks: `by_sequence`, it is defined as a mean over
sequences of means over their tokens, whatever `loss_agg_mode` says ("usually": where that is null); `choose`, the
function that singles out tokens."""

KL_ESTIMATORS = kl_estimator = Registry[Any](
    "a KL estimator", places=("algorithms/kl.py",), contract=FunctionContract(("logprobs", "ref_logprobs"))
)
"""`actor.kl_loss_type` and `algorithm.kl_penalty`."""

GROUP_FILTERS = group_filter = Registry[Any](
    "a filter of groups", places=("algorithms/filters.py",), contract=FunctionContract(("values",), ("trajectories",))
)
"""`algorithm.filter_groups.keep`."""

PARSERS = tool_parser = Registry[Any](
    "a tool-call parser",
    places=("chat/parsers",),
    contract=EitherContract(
        FunctionContract(("text", "tools")),
        ClassContract("", ("parse(text, tools)",), functions=False),
        second=lambda found: isinstance(found, type),
    ),
    marks=("stops",),
)
"""`rollout.multi_turn.format`. Mark `stops`: further tokens at which its models stop."""

ROW_SAMPLERS = row_sampler = Registry[Any](
    "a sampler of rows", places=("data/samplers.py",), contract=FunctionContract(("rows",), ("seed", "epoch", "scores"))
)
"""`data.row_sampler`."""

LR_SCHEDULES = lr_schedule = Registry[Any](
    "a learning-rate schedule",
    places=("training/update/schedules.py",),
    contract=FunctionContract(("progress",), ("step", "total", "num_cycles", "stable_ratio")),
)
"""`actor.optim.lr_scheduler_type`, `critic.optim.lr_scheduler_type` and, for sft, `optim.lr_scheduler_type`."""

OPTIMIZERS = optimizer = Registry[Any](
    "an optimizer",
    places=("training/update/optimizers.py",),
    contract=ClassContract("params, lr=", ("step()",)),
    marks=("state_bytes",),
    package="torch.optim",
)
"""`actor.optim.optimizer`, `critic.optim.optimizer` and, for sft, `optim.optimizer`: see
`agentrl.training.update.optimizers`. Mark `state_bytes`: bytes that it keeps of a parameter, for estimates."""

LOGGERS = run_logger = Registry[Any](
    "a logger",
    places=("tracking/loggers.py", "tracking/services"),
    contract=ClassContract("run", ("log(step, metrics)", "generations(step, rows)", "close()")),
)
"""`trainer.logger`."""

CALLBACKS = callback = Registry[Any](
    "a callback",
    places=(),
    contract=EitherContract(
        FunctionContract(("step",)),
        ClassContract(
            "",
            ("start(run)", "step(step)", "validation(step)", "checkpoint(step, folder)", "end(step, error)"),
            optional=True,
        ),
        second=has_hooks,
    ),
)
"""`trainer.callbacks`: see `agentrl.tracking.callbacks`."""

IN_PROCESS = (
    "module, max_num_seqs=, max_model_len=, deterministic=",
    (
        "async start()",
        "async close()",
        "open(key)",
        "async generate(token_ids, sampling, key=, media=)",
        "release(key)",
        "async abort()",
        "async pause()",
        "async resume()",
        "async update_weights(version)",
        "async sleep()",
        "async wake()",
        "async health()",
    ),
)
OF_A_SERVER = (
    "settings",
    (
        "command(port)",
        "environment()",
        "async ready(http)",
        "async greet(http)",
        "async generate(http, rid, ids, sampling, timeout, media)",
        "async abort(http, rids)",
        "async load(http)",
        "async sleep(http)",
        "async wake(http, what)",
        "async begin_update(http)",
        "async end_update(http, version)",
        "async load_files(http, folder)",
    ),
)

ENGINES = engine = Registry[Any](
    "an engine",
    places=("engines",),
    contract=EitherContract(ClassContract(*IN_PROCESS), ClassContract(*OF_A_SERVER), second=is_server),
)
"""`rollout.name`: an `Engine` of this process, or the backend of a server, which has a method `command`."""

WEIGHT_TRANSPORTS = weight_transport = Registry[Any](
    "a weight transport",
    places=("engines/servers/weights",),
    contract=ClassContract("link", ("async push(replicas)", "async close()")),
)
"""`rollout.weight_sync`."""

TASKS = task = Registry[Any](
    "a task", places=("tasks/demo",), contract=ClassContract(None, ("draw(rng)",), functions=False)
)
"""`agentrl data NAME`."""

LOOPS = agent_loop = Registry[Any](
    "an agent loop",
    places=(
        *("rollout/loops", "gateway/loop.py", "gateway/online.py"),
        *("environments/loop.py", "environments/outside.py", "environments/nemo_gym/loop.py"),
    ),
    contract=ClassContract(None, ("async run(trajectory, sampling)",), functions=False),
)
"""`rollout.agent.default_agent_loop`, and a row's `agent_name`."""

CONTAINER_PROVIDERS = container_provider = Registry[Any](
    "a container provider",
    places=("containers", "environments/harbor_boxes"),
    contract=ClassContract("settings", ("async prepare(spec)", "container(spec)", "async close()")),
)
"""`rollout.containers.provider`: see `agentrl.containers.contract`."""

TASK_FORMATS = task_format = Registry[Any](
    "a task format",
    places=("tasks",),
    contract=ClassContract("arguments", ("async set_up(container)", "async verify(container, logs)"), functions=False),
)
"""`format` in a row's `extra_info.task`: see `agentrl.tasks.format`."""

ROW_SOURCES = row_source = Registry[Any](
    "a row source",
    places=("tasks", "environments", "gateway/online.py"),
    contract=FunctionContract(("argument",), ("data",)),
    marks=("scored",),
)
"""`data.train_files=NAME:ARGUMENT` and `data.val_files`. It gives the rows, each with a `uid` of its own; `data` is the
section `data`. Mark `scored`: the rollout itself sets the reward of these rows, so no reward function is needed."""

ENVIRONMENT_KINDS = environment_kind = Registry[Any](
    "a kind of environment",
    places=("environments/kinds",),
    contract=EitherContract(
        ClassContract("id, kwargs, folder=", ("reset(seed)", "step(action)", "close()")),
        EitherContract(
            ClassContract("id, kwargs, folder=", ("program(count, turns)",), functions=False),
            ClassContract("id, kwargs, folder=", ("rows(entry, held_out)",), functions=False),
            second=brings_rows,
        ),
        second=lambda kind: runs_the_model(kind) or brings_rows(kind),
    ),
    marks=("unfinished",),
)
"""The key of an entry of `environments.yaml` that has the environment's id; the entry's further keys are keywords. Mark
`unfinished`: the reward of a side that cannot go on, where the entry says nothing. The second contract is that of kinds
whose environments ask the model themselves: see `agentrl.environments.outside`. The third is that of kinds with rows of
their own: a list of `Row`, each of which names its agent loop."""

DECORATORS = {name: value for name, value in globals().items() if name.islower() and isinstance(value, Registry)}
for name, registry in DECORATORS.items():
    registry.decorator = name
REGISTRIES: tuple[Registry[Any], ...] = tuple(DECORATORS.values())
"""All of them, in this order."""
