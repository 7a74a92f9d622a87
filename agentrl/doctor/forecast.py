"""Memory and seconds of a step on GPUs, foretold from the model's configuration and the settings alone.

Arithmetic over speeds of the GPU (speeds.py) and shares of them that training and servers reach. The shares are fitted
to runs of Qwen3-1.7B's shape; tests/doctor/test_plan.py has the runs that they are fitted to and those that they are
checked against. Not counted: tools, rewards, and waiting for them.
"""

from dataclasses import dataclass
from math import ceil

import torch

from agentrl.config.derived import processes
from agentrl.config.schema import Config
from agentrl.doctor.memory import GIB, TIGHT, Size, fullest_pass, gathers_once, parts
from agentrl.doctor.speeds import Speeds
from agentrl.engines.sharing import CONTEXT_BYTES, model_length

SEQUENCES = 8
"""Sequences of full length that the servers have room for, at the least."""
TRAINING, DECODING = 0.72, 0.88
"""Shares that updates reach of large products, and decoding of a copy's bandwidth."""
EXPERTS, WIDTH = 0.82, 1100
"""Share of TRAINING that products of experts reach; hidden size below which all products are slower."""
PASS_BYTES, STEP_BYTES, HOST_BYTES = 37, 40, 36
"""Bytes that are read and written for each parameter: in a pass, in an optimizer step, in one on the CPU."""
HOST = 20e9
"""Bytes/s of CPU memory and of the way to it, for each GPU; not measured."""
LAYER_SECONDS, REQUEST_SECONDS = 95e-6, 19e-6
"""Seconds of a decode step: of each layer's kernels, and of the server's CPU for each sequence."""
PREFILL_SECONDS = 7e-3
"""Seconds of a prompt, beyond its arithmetic."""
REDUCE_SECONDS = 15e-6
"""Seconds of a decode step: of each of two sums over the GPUs of a server in each layer; not measured."""
EXCHANGING, EXCHANGE_SECONDS = 0.4, 8e-3
"""Where processes split experts: share of the link that exchanges of tokens reach, and seconds in which a layer of a
pass counts and sorts them."""
SEND, SLEEP_SECONDS = 83e9, 0.12
"""Bytes/s of weights to a server; seconds in which a server frees its memory and takes it again."""
START_SECONDS, RAY_SECONDS, READ = 42.0, 25.0, 1.5e9
"""From the command to the first step: one process, what Ray adds, bytes/s of a machine's disk."""
TRANSIENT = ("gradients", "gradients before they are summed", "activations", "logits")
CUDA = torch.device("cuda")


@dataclass
class Layout:
    """Where the settings put a run, and the bytes and seconds that follow."""

    config: Config
    size: Size
    speeds: Speeds
    lengths: float = 0.5
    """Mean length of prompts and answers over the longest that the settings allow."""

    def __post_init__(self) -> None:
        trainer, rollout, actor, data = self.config.trainer, self.config.rollout, self.config.actor, self.config.data
        self.ranks = trainer.nnodes * trainer.n_gpus_per_node
        self.apart = processes(trainer, rollout) - self.ranks  # 0: servers are on the GPUs that train
        self.serving = self.apart or self.ranks
        self.tensor, self.sequence = rollout.tensor_model_parallel_size, actor.ulysses_sequence_parallel_size
        self.experts = actor.fsdp_config.expert_parallel_size
        self.config = gathers_once(self.config, self.size, self.ranks, self.speeds.memory * GIB)
        self.samples, self.group = data.train_batch_size * rollout.n, rollout.n
        self.prompt = round(data.max_prompt_length * self.lengths)
        self.answer = round(data.max_response_length * self.lengths)
        self.served = self.size.parameters * (1.0 if rollout.quantization else 2.0)  # bytes of a server's weights
        routed = self.size.experts * self.size.sizes.active_experts / (self.size.flops.backbone + self.size.flops.head)
        slower = (1 - routed + routed / EXPERTS) / min(self.size.sizes.hidden / WIDTH, 1.0)
        self.products = self.speeds.flops * TRAINING / slower  # FLOP/s of passes

    def divides(self) -> bool:
        """Whether heads, experts and GPUs can be split so."""
        sizes, rollout, trainer = self.size.sizes, self.config.rollout, self.config.trainer
        servers = self.serving // (rollout.nnodes or trainer.nnodes)
        split = [(servers, self.tensor), (sizes.heads, self.tensor), (sizes.heads, self.sequence)]
        split += [(sizes.experts, self.experts), (self.ranks, self.sequence), (self.ranks, self.experts)]
        return not any(number % parts for number, parts in split)

    def memory(self) -> tuple[float, float]:
        """GiB of each GPU in an update with the shortest passes, and while SEQUENCES are sampled."""
        found = parts(self.config, self.size, self.ranks, CUDA, 0.0)
        passing = TRANSIENT + ("weights to compute with",) * (self.ranks > 1)
        kept = sum(value for name, value in found.items() if name not in passing)
        if self.config.actor.fsdp_config.param_offload:
            kept -= found["weights"]
        cache = SEQUENCES * model_length(self.config) * self.size.cache_bytes / self.serving
        server = (self.served / self.tensor + cache + CONTEXT_BYTES) / GIB
        return sum(found.values()) + CONTEXT_BYTES / GIB, server + (0.0 if self.apart else kept)

    def seconds(self) -> dict[str, float]:
        """Seconds of the phases, of the step, and of the start."""
        found = {"rollout": self.rollout(), "logprobs": self.logprobs(), "update": self.update(), "sync": self.sync()}
        training = found["logprobs"] + found["update"]
        ahead = self.apart and self.config.trainer.max_staleness
        step = (max if ahead else lambda *both: sum(both))(found["rollout"], training) + found["sync"]
        start = START_SECONDS + (self.ranks + self.apart > 1) * RAY_SECONDS
        start += 2 * self.size.parameters / min(self.ranks, 8) / READ
        return found | {"step": step, "start": start}

    def rollout(self) -> float:
        """Seconds until all answers are sampled, one of them of full length; with a bound above 0 of a batch among
        others."""
        each = self.samples * self.tensor / self.serving
        ahead = min(self.config.trainer.max_staleness + 1, 2)  # batches that are under way
        cache = (self.prompt + self.answer) * self.size.cache_bytes / self.tensor
        spare = (TIGHT * self.speeds.memory - self.memory()[1]) * GIB / cache + SEQUENCES
        running = max(min(each * ahead, spare), 1.0)
        tail = (ahead == 1) * (self.config.data.max_response_length - self.answer) * self._decode(1.0)
        flops = self.size.flops.forward([self.prompt], 0) / self.tensor
        prefill = each / self.group * (PREFILL_SECONDS + flops / self.products)
        return each / running * self.answer * self._decode(running) + tail + prefill

    def logprobs(self) -> float:
        """Seconds of the forward passes before the update: of the policy, of a reference."""
        actor, config = self.config.actor, self.config
        old = actor.ppo_mini_batch_size < config.data.train_batch_size
        forwards = old + (actor.use_kl_loss or config.algorithm.use_kl_in_reward)
        return forwards * self.update() / (3 + config.model.enable_gradient_checkpointing)

    def update(self) -> float:
        """Seconds of the forward and backward passes and of the optimizer."""
        actor, size, sharding = self.config.actor, self.size, self.config.actor.fsdp_config
        shared = self.sequence == 1 if actor.share_prompts is None else actor.share_prompts
        lengths, scored = [self.prompt + self.answer] * self.group, self.answer * self.group
        repeated = [self.prompt] * (self.group - 1) * shared
        prompts = self.samples // self.group
        flops = size.flops.update(lengths, scored, repeated)
        flops += self.config.model.enable_gradient_checkpointing * size.flops.forward(lengths, scored, repeated)
        tokens = prompts * (sum(lengths) - sum(repeated)) / self.ranks
        fullest, _ = fullest_pass(self.config, size, self.ranks, CUDA, TIGHT * self.speeds.memory * GIB)
        passes = ceil(tokens / fullest)
        steps = max(prompts // actor.ppo_mini_batch_size, 1)
        seconds = flops * prompts / self.ranks / self.products
        present = size.parameters - size.experts * (1 - 1 / self.experts)  # that a rank computes with
        seconds += passes * present * PASS_BYTES / self.speeds.bandwidth
        moved = sharding.optimizer_offload or sharding.offload_policy
        optimizer = HOST_BYTES / HOST if moved else STEP_BYTES / self.speeds.bandwidth
        seconds += steps * size.trained / self.ranks * optimizer
        return seconds + self._gathering(passes, steps) + self._exchanges(tokens, passes)

    def sync(self) -> float:
        """Seconds until the servers have the weights."""
        weights = 2.0 * self.size.parameters
        gathered = weights * (1 - 1 / self.ranks) / self._path(self.ranks, 1.0)
        each = weights / (1 if self.apart else self.tensor)
        asleep = 0.0 if self.apart else SLEEP_SECONDS
        return gathered + each / min(SEND, self._path(self.ranks + self.apart) if self.apart else SEND) + asleep

    def _path(self, gpus: int, share: float = 0.0) -> float:
        """Bytes/s that each of so many GPUs receives. Where machines gather the same, their ways to the network add up:
        `share` of a machine's GPUs do."""
        each = self.config.trainer.n_gpus_per_node
        return self.speeds.link if gpus <= each else min(self.speeds.link, self.speeds.network * max(share * each, 1))

    def _gathering(self, passes: int, steps: int) -> float:
        """Seconds in which ranks gather weights and sum gradients."""
        if self.ranks == 1:
            return 0.0
        sharding, size = self.config.actor.fsdp_config, self.size
        owners = self.ranks / self.experts
        shares = (size.parameters - size.experts, self.ranks), (size.experts / self.experts, owners)
        gathers, sums = (2 * passes, passes) if sharding.reshard_after_forward else (steps, steps)
        seconds = sum(
            parameters * (1 - 1 / ranks) / self._path(self.ranks, ranks / self.ranks) for parameters, ranks in shares
        )
        return seconds * (2 * gathers + 4 * sums)

    def _exchanges(self, tokens: float, passes: int) -> float:
        """Seconds in which tokens go to the ranks of their experts, or of their heads (Ulysses), and back."""
        sizes, experts, split = self.size.sizes, self.experts, self.sequence
        rounds = 2 + self.config.model.enable_gradient_checkpointing
        routed = 2 * sizes.active_experts * sizes.experts * sizes.hidden * (1 - 1 / experts) / EXCHANGING
        heads = 2 * (sizes.queries + sizes.keys) * (1 - 1 / split)
        seconds = 2 * tokens * rounds * sizes.layers * (routed / self._path(experts) + heads / self._path(split))
        return seconds + (experts > 1) * passes * sizes.layers * EXCHANGE_SECONDS

    def _decode(self, running: float) -> float:
        """Seconds of a decode step of a server with so many sequences."""
        size, speeds, tensor = self.size, self.speeds, self.tensor
        read = self.served * (1 - size.experts / size.parameters * (1 - min(size.sizes.active_experts * running, 1.0)))
        read += running * (self.prompt + self.answer / 2) * size.cache_bytes
        computed = running * size.flops.forward([1], 1) / self.products
        busy = (read / (speeds.bandwidth * DECODING) + computed) / tensor
        busy += size.sizes.layers * (LAYER_SECONDS + (tensor > 1) * 2 * REDUCE_SECONDS)
        return max(busy, running * REQUEST_SECONDS)
