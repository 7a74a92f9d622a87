"""A reward model: a sequence classification network with one label, which scores whole conversations.

Invariants: conversations wait for the running batch only; batching changes a score by float rounding only; a
conversation that cannot be scored raises InfraError and never scores 0.
"""

import asyncio
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from agentrl.chat.template import Template
from agentrl.config.schema import RewardModel
from agentrl.core.errors import InfraError, UserError
from agentrl.training.batches.batch import bounds_of, positions_of
from agentrl.training.model.adapter import first_line
from agentrl.training.model.attention.choosing import packing_arguments
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.float32_head import heads_in_float32
from agentrl.training.model.loading import load_pretrained, load_tokenizer_from, model_source
from agentrl.training.model.packing_probe import pack_where_exact
from agentrl.trajectory.trajectory import Trajectory

SECTION = "reward.reward_model.model"
PROBE_TOKENS = 8
PROBE_TOLERANCE = 5e-2


class Judge:
    """Scores conversations given as token ids. Raises UserError where the model is no reward model."""

    def __init__(self, reward_model: RewardModel, *, device: torch.device, use_shm: bool = False) -> None:
        """`use_shm`: load from a copy in /dev/shm."""
        model = reward_model.model
        source = model_source(model.path, SECTION, use_shm=use_shm)
        module: Any = load_pretrained(model, source, head=AutoModelForSequenceClassification, section=SECTION)
        if module.config.num_labels != 1:
            raise UserError(f"{SECTION}.path: {model.path} has {module.config.num_labels} labels; a reward model has 1")
        heads_in_float32(module)  # a score of 12.3 is 12.3125 in bfloat16, which would make ties
        # Conversations are never padded: the padding token is a token like the others.
        module.config.get_text_config().pad_token_id = None
        self.module: Any = module.requires_grad_(False).to(device).eval()
        self.device = device
        self.vocabulary = module.config.get_text_config().vocab_size
        self.packed = pack_where_exact(ModelHandle(module), device) and self._pools_the_last_token()

    @torch.no_grad()
    def __call__(self, conversations: list[list[int]]) -> list[float]:
        """One score per conversation."""
        if not self.packed:
            return [float(self._alone(ids)) for ids in conversations]
        lengths = [len(ids) for ids in conversations]
        bounds = bounds_of(lengths).to(self.device)
        hidden = self.module.base_model(
            input_ids=self._row([t for ids in conversations for t in ids]),
            position_ids=positions_of(bounds, sum(lengths))[None],
            **packing_arguments(bounds, max(lengths)),
        ).last_hidden_state[0]
        return self.module.score(hidden[bounds[1:].long() - 1]).float()[:, 0].tolist()

    def _alone(self, ids: list[int]) -> Tensor:
        return self.module(input_ids=self._row(ids), use_cache=False).logits[0, 0].float()

    def _row(self, ids: list[int]) -> Tensor:
        return torch.tensor([ids], device=self.device)

    @torch.no_grad()
    def _pools_the_last_token(self) -> bool:
        """Whether the score is a linear head on the last token's hidden state."""
        head = getattr(self.module, "score", None)
        if not isinstance(head, nn.Linear) or self.module.base_model is self.module:
            return False
        ids = list(range(min(PROBE_TOKENS, self.vocabulary)))
        hidden = self.module.base_model(input_ids=self._row(ids), use_cache=False).last_hidden_state[0, -1]
        score = self._alone(ids)
        return bool((head(hidden).float()[0] - score).abs() <= PROBE_TOLERANCE * score.abs().clamp(min=1.0))


class Conversations:
    """Turns a trajectory into the reward model's token ids."""

    def __init__(self, reward_model: RewardModel, *, vocabulary: int, policy_vocabulary: int) -> None:
        """`policy_vocabulary`: the policy's number of tokens. Raises UserError where the model has fewer."""
        model = reward_model.model
        self.max_length = reward_model.max_length
        self.template: Template | None = None
        if model.input_tokenizer is not None:
            remote = model.trust_remote_code
            self.template = Template(load_tokenizer_from(model.path, f"{SECTION}.path", trust_remote_code=remote))
        elif policy_vocabulary > vocabulary:
            raise UserError(
                f"{SECTION}.path: it knows {vocabulary} tokens, the policy has {policy_vocabulary}; set "
                f"{SECTION}.input_tokenizer to the policy's path, and conversations are encoded again"
            )

    def __call__(self, trajectory: Trajectory) -> list[int]:
        """Its token ids, the last `max_length` of them. Raises InfraError where the model's template refuses it."""
        ids = list(trajectory.ledgers[-1].ids)
        if self.template is not None:
            try:
                ids = self.template.encode(self.template.render(trajectory.messages, marked=True))
            except Exception as error:  # the template's own code
                raise InfraError(f"the reward model's chat template fails: {first_line(error)}") from error
        return ids[-self.max_length :] if self.max_length else ids


class RewardWorker:
    """Scores trajectories as they finish: waiting ones form the next batch, one batch at a time, during the rollout.

    `judge`: a Judge, or a proxy of a remote one.
    """

    def __init__(self, reward_model: RewardModel, judge: Any, *, policy_vocabulary: int) -> None:
        """Raises UserError, see `Conversations`."""
        self.judge, self.max_tokens = judge, reward_model.forward_max_token_len_per_gpu
        self.read = Conversations(reward_model, vocabulary=judge.vocabulary, policy_vocabulary=policy_vocabulary)
        self._waiting: deque[tuple[list[int], asyncio.Future[float]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, trajectory: Trajectory) -> float:
        """The trajectory's score. Raises InfraError."""
        score: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((self.read(trajectory), score))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await score

    async def _work(self) -> None:
        while self._waiting:
            ids, futures = zip(*self._next_batch(), strict=True)
            try:
                scores = await asyncio.to_thread(self.judge, list(ids))
            except Exception as error:  # the model's own code, or the GPU
                self._fail(list(futures), error)
                continue
            for future, score in zip(futures, scores, strict=True):
                if not future.done():
                    future.set_result(score)

    def _fail(self, futures: list[asyncio.Future[float]], error: Exception) -> None:
        for future in futures:
            if not future.done():
                failure = InfraError(f"the reward model failed: {first_line(error)}")
                failure.__cause__ = error
                future.set_exception(failure)

    def _next_batch(self) -> list[tuple[list[int], asyncio.Future[float]]]:
        taken = [self._waiting.popleft()]
        tokens = len(taken[0][0])
        while self._waiting:
            tokens += len(self._waiting[0][0])
            if tokens > self.max_tokens:
                break
            taken.append(self._waiting.popleft())
        return taken
