"""Keys of rollouts: engine, sampling, turns, agent loops."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from agentrl.config.schema import marks
from agentrl.config.schema.marks import FILTERS, InputPath, LaterPath, OpenChoice, OutputPath
from agentrl.core import points
from agentrl.core.dtypes import COMPUTED

SAMPLED = marks.Range(lambda value: value > 0, "must be over 0; for greedy set rollout.do_sample=false")
WORKERS = marks.Range(lambda value: value >= 0, "must be at least 0, with which the controller runs all conversations")
GPU_SHARE = marks.Range(
    lambda value: 0 < value <= 0.95, "must be over 0 and at most 0.95, because the policy trains on the same GPU"
)


@dataclass
class TokenFilters:
    """Sampling from a part of the model's distribution."""

    top_p: Annotated[float, FILTERS["top_p"]] = 1.0
    """Nucleus sampling: keep the likeliest tokens up to this probability mass; 1: all. Log-probs are of the
    renormalised distribution."""
    top_k: Annotated[int, FILTERS["top_k"]] = -1
    """Keep the k likeliest tokens; -1 or 0: all."""
    min_p: Annotated[float, FILTERS["min_p"]] = 0.0
    """Keep tokens of at least this share of the likeliest one's probability (arXiv 2407.01082); 0: all."""
    repetition_penalty: Annotated[float, FILTERS["repetition_penalty"]] = 1.0
    """Divide positive logits of tokens that the sequence already has by this, and multiply negative ones; 1: off."""


@dataclass
class ValSampling(TokenFilters):
    """Sampling for validation."""

    n: Annotated[int, marks.AT_LEAST_1] = 1
    """Samples per row."""
    do_sample: bool | None = None
    """false: greedy decoding at any temperature; null: greedy if `temperature` is 0."""
    temperature: Annotated[float, marks.Range(lambda value: value >= 0, "must not be below 0")] = 0.0
    """Sampling temperature; 0: greedy."""


@dataclass
class MultiTurn:
    """Turns, tools and the simulated user."""

    enable: bool = False
    """Run rows as conversations with tools; false: one answer per prompt."""
    max_assistant_turns: Annotated[int | None, marks.AT_LEAST_0] = None
    """Most turns of the model; null or 0: limited only by the length."""
    max_user_turns: Annotated[int | None, marks.AT_LEAST_0] = None
    """Most replies of the interaction; null or 0: no limit."""
    max_parallel_calls: Annotated[int, marks.AT_LEAST_1] = 8
    """Most tool calls run per turn; further calls return an error to the model."""
    max_consecutive_errors: Annotated[int, marks.AT_LEAST_0] = 4
    """End the trajectory after this many consecutive turns with only bad tool calls."""
    tool_config_path: InputPath | None = None
    """YAML that lists tools."""
    function_tool_path: InputPath | None = None
    """Python file with functions marked @function_tool."""
    interaction_config_path: InputPath | None = None
    """YAML that lists interactions."""
    max_tool_response_length: Annotated[int, marks.AT_LEAST_1] = 1024
    """Longest tool response, in `tool_response_unit`."""
    tool_response_unit: Annotated[str, ("characters", "tokens")] = "characters"
    """characters (verl's) or tokens."""
    tool_response_truncate_side: Annotated[str, ("left", "right", "middle")] = "middle"
    """Part of a long tool response to cut: left, right or middle."""
    format: Annotated[str | None, OpenChoice(points.PARSERS)] = None
    """How the model writes tool calls; null: as its template does."""
    use_inference_chat_template: bool = False
    """Render the whole history with the template at each turn, as at inference (it may strip thinking, for example). If
    that changes earlier tokens, the trajectory becomes several samples."""
    tokenization_sanity_check_mode: Annotated[str, ("disable", "strict", "ignore_strippable")] = "strict"
    """Compare the recorded tokens with the template's: disable, strict, or ignore_strippable (ignores differences in
    white space)."""
    completion_callback: str | None = None
    """Dotted path of a function that is called with the trajectory after every turn."""


@dataclass
class Agent:
    """Agent loops."""

    default_agent_loop: str | None = None
    """single_turn, tool_agent, a name from `agent_loop_config_path`, or a dotted path; null: tool_agent when
    multi-turn is on, otherwise single_turn. A row's `agent_name` overrides it."""
    agent_loop_config_path: InputPath | None = None
    """YAML list of {name, _target_} with your own loops, and of {name, command} with agent programs."""
    num_workers: Annotated[int, WORKERS] = 0
    """Processes that run the conversations, tools and rewards of a Ray run, spread over its machines; limits such as
    `max_concurrent_trajectories` and a tool's `max_concurrency` are divided among them. 0: the controller runs them,
    which serves about 1,000 conversations at once. A run in one process ignores it."""


@dataclass
class Containers:
    """Containers of rows that describe one, in `extra_info.container` or `extra_info.task`."""

    provider: Annotated[str, OpenChoice(points.CONTAINER_PROVIDERS)] = "docker"
    """Makes the containers."""
    registry: str | None = None
    """For provider=docker: the registry (HOST:PORT, or HOST/PATH) that `agentrl tasks build --push` pushed images to.
    Each machine pulls them from there, and builds or pulls from elsewhere what the registry lacks."""
    harbor: dict[str, Any] = field(default_factory=dict)
    """For provider=harbor: `python`, an interpreter that has Harbor and a vendor's SDK, and Harbor's own section
    `environment`: `type` (modal, daytona, e2b, gke, ...) or `import_path`, and `kwargs`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of `apptainer`, `kubernetes`, or a provider that is named by its path."""
    max_starting: int = 16
    """Most containers that start at once, over the whole run, and at least one in each rollout worker; further ones
    wait, and their `start_timeout` does not run meanwhile."""
    pass_env: list[str] = field(default_factory=list)
    """Environment variables of this machine that task folders may have where their files ask for them, as
    `${HF_TOKEN}`. A task that needs another one is refused; one with a default has its default."""


@dataclass
class Rollout(TokenFilters):
    """The engine and how it samples."""

    name: Annotated[str, OpenChoice(points.ENGINES, ("auto", "openai"))] = "auto"
    """Engine: hf (in this process, on the policy's weights), sglang or vllm (separate servers), or auto: sglang if
    `base_url` is set, or if there is a GPU and `agentrl engine install sglang` was run; otherwise hf. openai: the model
    `model.path` of an OpenAI-compatible server at `base_url`, which is not trained."""
    n: Annotated[int, marks.AT_LEAST_1] = 1
    """Trajectories per prompt: the group size of GRPO."""
    temperature: Annotated[float, SAMPLED] = 1.0
    """Sampling temperature; the trainer uses the same for its log-probs."""
    do_sample: bool = True
    """Sample; false: greedy decoding."""
    use_fire_sampling: bool = False
    """Sample the first token of each response at temperature 30 from the 16 likeliest (FIRE, arXiv 2410.21236)."""
    ignore_eos: bool = False
    """Continue after the end-of-turn token; for load tests."""
    max_model_len: Annotated[int | None, marks.AT_LEAST_1] = None
    """Longest sequence; null: `data.max_prompt_length` + `data.max_response_length`."""
    limit_images: int | None = None
    """Most images and videos per conversation, including those of tools; one more ends it. null: no limit."""
    max_num_seqs: Annotated[int | None, marks.AT_LEAST_1] = None
    """Most sequences that the engine decodes at once; null: as many as are under way (data.train_batch_size x n x
    (trainer.max_staleness + 1), at most `max_concurrent_trajectories`, divided among the servers), and 64 in the
    trainer's process (hf)."""
    max_concurrent_trajectories: Annotated[int, marks.AT_LEAST_1] = 1024
    """Most trajectories that run at once."""
    trajectory_timeout: Annotated[float, marks.ABOVE_0] = 600.0
    """Longest time of a trajectory, in seconds. Waits for a paused or restarted engine and for a free slot do not
    count."""
    infra_retries: Annotated[int, marks.AT_LEAST_0] = 1
    """Retries, each with a new seed, of a trajectory that ended by an infrastructure failure."""
    retry_timeouts: bool = False
    """Also retry a trajectory that exceeded `trajectory_timeout`; a step may then wait that long for each of
    `infra_retries`."""
    max_infra_drop_share: Annotated[float, marks.SHARE] = 0.5
    """Largest share of a step's trajectories that may be lost to infrastructure failures after retries. If more are
    lost, the run stops before it trains on the rest, saves the step before, and resumes from there. 1: it stops only if
    all are lost."""
    deterministic: bool | None = False
    """Run the hf engine only when every live trajectory waits for it. Batches then do not depend on timing, and a
    restarted run repeats the same results bit by bit. Slow tools and containers then delay all trajectories. null: true
    for the hf engine with trainer.max_staleness=0 and without rollout workers."""
    val_kwargs: ValSampling = field(default_factory=ValSampling)
    """Sampling for validation."""
    multi_turn: MultiTurn = field(default_factory=MultiTurn)
    """Turns, tools, simulated user."""
    agent: Agent = field(default_factory=Agent)
    """Agent loops."""
    containers: Containers = field(default_factory=Containers)
    """Containers of rows."""
    enable_rollout_routing_replay: bool = False
    """Record the experts that each token meets in the engine; actor.router_replay.mode=R3 records them in any case."""
    engine_kwargs: dict[str, Any] = field(default_factory=dict)
    """Options passed to the engine unchanged: engine_kwargs.hf.threads, or engine_kwargs.sglang.<flag> (or vllm.<flag>)
    with flags of that server, for example attention_backend."""
    engine_python: LaterPath | None = None
    """Server engines: Python interpreter of the engine; null: that of `agentrl engine install`, otherwise this one."""
    base_url: Any = None
    """Server engines: address, or list of addresses, of running servers; null: agentrl starts servers."""
    router_url: str | None = None
    """Address of an sglang-router in front of the servers in `base_url`: it gets the requests, the servers get
    weights."""
    nnodes: Annotated[int, marks.AT_LEAST_0] = 0
    """On Ray: machines whose GPUs only sample; 0: engines share the GPUs that train (colocated)."""
    n_gpus_per_node: Annotated[int | None, marks.AT_LEAST_1] = None
    """GPUs (with trainer.device=cpu: processes) per such machine; null: trainer.n_gpus_per_node."""
    replicas: Annotated[int, marks.AT_LEAST_1] = 1
    """Server engines: number of servers; each has its own GPUs if there are enough. On Ray with GPUs, their number
    follows from the GPUs and this key is not used."""
    tensor_model_parallel_size: Annotated[int, marks.AT_LEAST_1] = 1
    """Server engines: GPUs that share one copy of the model."""
    gpu_memory_utilization: Annotated[float | None, GPU_SHARE] = None
    """Server engines: share of the free GPU memory for weights and KV cache; the trainer uses the rest. null: as much
    as all trajectories under way (or `max_num_seqs`) need at full length, at most 0.85 less what the trainer keeps
    there meanwhile; 0.5 if that is unknown, or with free_cache_engine=false."""
    dtype: Annotated[str, ("auto", *COMPUTED)] = "auto"
    """Server engines: bfloat16, float16, float32, or auto: bfloat16 on a GPU, model.dtype on a CPU."""
    quantization: Annotated[str | None, ("fp8",)] = None
    """Server engines on a GPU: fp8: the server rounds weights to 8 bits at its start and after each weight sync, and
    samples from those: faster, and half the memory of weights. algorithm.rollout_correction corrects the larger gap.
    null: not rounded."""
    speculative_algorithm: Annotated[str | None, ("ngram",)] = None
    """Server engines on a GPU: ngram: guess the next tokens from what the text so far repeats, and check them in one
    pass; no draft model. Tokens and log-probs are those of the policy. Faster where answers repeat prompts or
    themselves and few sequences run at once. null: none."""
    enforce_eager: bool = False
    """Server engines: no CUDA graphs: faster start, slower decoding."""
    enable_chunked_prefill: bool = True
    """Server engines: split long prompts into chunks so that they do not delay decoding."""
    max_num_batched_tokens: Annotated[int | None, marks.AT_LEAST_1] = None
    """Server engines: tokens per chunk; null: the engine's default."""
    load_format: str = "dummy"
    """Server engines: initial weights: dummy (random until the first weight sync), or auto (read from model.path)."""
    disable_log_stats: bool = True
    """Server engines: no log of batch statistics; false: write it to the server's log file in the run's folder."""
    free_cache_engine: bool | None = None
    """Server engines on the trainer's GPU: free the memory of weights and KV cache while the policy trains; null: where
    not both fit."""
    weight_sync: Annotated[str, OpenChoice(points.WEIGHT_TRANSPORTS, ("auto",))] = "auto"
    """Server engines: how weights get there: over ipc on the same GPU, over nccl between GPUs, in files anywhere."""
    weight_dir: OutputPath | None = None
    """Folder for weights with weight_sync=files; null: shared memory."""
    weight_check: Annotated[str, ("first", "always", "never")] = "first"
    """When to compare the engine's log-probs with the policy's after a weight sync: first, always or never. If not
    never, the first sync also accounts for the name of each tensor."""
    update_weights_bucket_megabytes: Annotated[int, marks.AT_LEAST_1] = 1024
    """Size of the buckets in which weights are sent, in MiB."""
    start_timeout: Annotated[float, marks.ABOVE_0] = 600.0
    """Longest start of a server, in seconds."""
    partial_rollout: bool = True
    """New weights interrupt running requests, which then continue with them; each token records its weight version.
    false: an update waits for running requests, so that each has one version."""
    request_timeout: Annotated[float | None, marks.ABOVE_0] = None
    """Longest request to a server, in seconds; after that, the server counts as dead. null: no limit."""
    custom: dict[str, Any] = field(default_factory=dict)
    """Settings of your own agent loop."""
