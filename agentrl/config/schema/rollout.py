"""How trajectories are made."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ValSampling:
    """Sampling for validation."""

    n: int = 1
    """Samples a row."""
    do_sample: bool | None = None
    """false: greedy, whatever the temperature; null: as the temperature says."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus."""
    top_k: int = -1
    """Keep the k likeliest; -1 or 0: all."""


@dataclass
class MultiTurn:
    """Turns, tools and the simulated user."""

    enable: bool = False
    """Let rows run as conversations with tools; false: one answer a prompt."""
    max_assistant_turns: int | None = None
    """Turns the model may take; null: no limit but the length."""
    max_user_turns: int | None = None
    """Replies of the interaction; null: no limit."""
    max_parallel_calls: int = 8
    """Tool calls carried out per turn; further ones are answered with an error the model can read."""
    max_consecutive_errors: int = 4
    """Turns in a row with nothing but bad tool calls before the trajectory ends."""
    tool_config_path: str | None = None
    """YAML that lists tools."""
    function_tool_path: str | None = None
    """Python file with functions marked @function_tool."""
    interaction_config_path: str | None = None
    """YAML that lists interactions."""
    max_tool_response_length: int = 1024
    """Longest tool response, in `tool_response_unit`."""
    tool_response_unit: str = "characters"
    """characters (verl's) or tokens."""
    tool_response_truncate_side: str = "middle"
    """The part that is cut away: left, right or middle."""
    format: str | None = None
    """How the model writes tool calls; null: as its template does."""
    use_inference_chat_template: bool = False
    """Show the model at each turn what the template would show at inference (thinking stripped, say); where that
    rewrites history, the trajectory becomes several samples."""
    tokenization_sanity_check_mode: str = "strict"
    """disable, strict, or ignore_strippable (differences in white space pass)."""
    completion_callback: str | None = None
    """Dotted path of a function called after every turn with the trajectory."""


@dataclass
class Agent:
    """Which loop drives a trajectory."""

    default_agent_loop: str | None = None
    """single_turn, tool_agent, a name from `agent_loop_config_path`, or a dotted path; null: tool_agent when
    multi-turn is on, single_turn otherwise. A row's `agent_name` wins."""
    agent_loop_config_path: str | None = None
    """YAML list of {name, _target_}: loops of your own."""


@dataclass
class Rollout:
    """The engine and how it samples."""

    name: str = "auto"
    """Engine: hf (in this process, on the policy's own weights), sglang or vllm (servers of their own), or auto:
    sglang where `base_url` is set, or there is a GPU and `agentrl engine install sglang` was run; else hf."""
    n: int = 1
    """Trajectories a prompt: the group of GRPO."""
    temperature: float = 1.0
    """Sampling temperature; the trainer uses the same for its log-probs."""
    top_p: float = 1.0
    """Nucleus; below 1 the log-probs are those of the renormalised distribution."""
    top_k: int = -1
    """Keep the k likeliest; -1 or 0: all."""
    do_sample: bool = True
    """false: greedy."""
    use_fire_sampling: bool = False
    """Draw the first token of each response at temperature 30 among the 16 likeliest (FIRE, arXiv 2410.21236)."""
    ignore_eos: bool = False
    """Go on past the end-of-turn token, for load tests."""
    seed: int = 0
    """Base of every request's own seed."""
    max_model_len: int | None = None
    """Longest sequence; null: `data.max_prompt_length` + `data.max_response_length`."""
    limit_images: int | None = None
    """Images and videos of one conversation, those of tools included: one more ends it; null: no limit."""
    max_num_seqs: int = 64
    """Sequences the engine decodes at once."""
    max_concurrent_trajectories: int = 1024
    """Trajectories alive at once."""
    trajectory_timeout: float = 600.0
    """Wall seconds a trajectory may take."""
    infra_retries: int = 1
    """Fresh tries, each with a new seed, for a trajectory that an infrastructure failure ended."""
    retry_timeouts: bool = False
    """Try a trajectory that took longer than `trajectory_timeout` again, too; a step may then wait that long for each
    of `infra_retries`."""
    max_infra_drop_share: float = 0.5
    """Share of a step's trajectories that infrastructure failures may take, after their retries. A step that loses more
    stops the run before it trains on the rest; the run saves the step before, and goes on from there. 1: it stops only
    when all are lost."""
    deterministic: bool = False
    """Run the hf engine only when every live trajectory waits on it, so that batches, and with them the last bits
    of every float, do not depend on timing: a restarted run repeats itself bit for bit. Slow tools then hold up
    the rest."""
    val_kwargs: ValSampling = field(default_factory=ValSampling)
    """Sampling for validation."""
    log_prob_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward pass, where the policy's log-probs are made before the update; null: the actor's."""
    log_prob_use_dynamic_bsz: bool | None = None
    """Fill such a pass up to a number of tokens; null: as the actor does."""
    log_prob_max_token_len_per_gpu: int | None = None
    """Token budget of such a pass; null: the actor's."""
    multi_turn: MultiTurn = field(default_factory=MultiTurn)
    """Turns, tools, simulated user."""
    agent: Agent = field(default_factory=Agent)
    """Agent loops."""
    engine_kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to the engine untouched, under its name: engine_kwargs.hf.threads, or engine_kwargs.sglang.<flag> (or
    vllm.<flag>) with the flags of that engine's server, attention_backend say."""
    engine_python: str | None = None
    """Server engines: their Python interpreter; null: that of `agentrl engine install`, or else this one."""
    base_url: Any = None
    """Server engines: one address, or a list, of servers that run already; null: agentrl starts them."""
    router_url: str | None = None
    """An sglang-router in front of `base_url`'s servers: requests go to it, weights to the servers themselves."""
    nnodes: int = 0
    """On Ray: machines with GPUs for sampling alone; 0: engines share the GPUs that train."""
    n_gpus_per_node: int | None = None
    """GPUs of each of these machines (with trainer.device=cpu: processes); null: trainer.n_gpus_per_node."""
    replicas: int = 1
    """Server engines: how many servers; each has its own GPUs where there are enough. On Ray there are as many as the
    GPUs hold, and this counts on a CPU only."""
    tensor_model_parallel_size: int = 1
    """Server engines: GPUs that share one copy of the model."""
    gpu_memory_utilization: float = 0.5
    """Server engines: share of the free GPU memory for weights and KV cache; the trainer needs the rest."""
    dtype: str = "auto"
    """Server engines: bfloat16, float16, float32, or auto: bfloat16 on a GPU, model.dtype on a CPU."""
    enforce_eager: bool = False
    """Server engines: no CUDA graphs; a faster start, slower tokens."""
    enable_chunked_prefill: bool = True
    """Server engines: cut long prompts so that they do not hold up decoding."""
    max_num_batched_tokens: int | None = None
    """Server engines: tokens of such a piece; null: the engine's choice."""
    load_format: str = "dummy"
    """Server engines: dummy (the first sync brings the weights), or auto (from model.path as well)."""
    disable_log_stats: bool = True
    """Server engines: false logs batches to the server's log file in the run's folder."""
    free_cache_engine: bool = True
    """Server engines on the trainer's GPU: give weights and KV cache back while the policy trains."""
    weight_sync: str = "auto"
    """Server engines: how weights get there: over ipc on the same GPU, over nccl between GPUs, in files anywhere."""
    weight_dir: str | None = None
    """Folder for files' weights; null: shared memory."""
    weight_check: str = "first"
    """Compare an engine's log-probs with the policy's after a sync: first, always or never."""
    update_weights_bucket_megabytes: int = 512
    """Most MiB of weights on their way at once."""
    start_timeout: float = 600.0
    """Wall seconds a server may take to start."""
    partial_rollout: bool = True
    """Server engines: new weights interrupt requests under way, which go on with them, each token bearing its version;
    false: the update waits until those requests are done."""
    request_timeout: float | None = None
    """Wall seconds for one request to a server, after which it is taken for dead; null: no limit of its own."""
