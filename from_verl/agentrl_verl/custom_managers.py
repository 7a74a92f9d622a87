"""A reward manager class of the user's own, written for verl: called with the batch it expects.

Its kind shows in its methods: `run_single(data)` is asked for one trajectory at a time (verl 0.7 and later),
`__call__(data, return_dict=True)` once for all of a step (before). What it decodes of `responses` is what verl's do:
every token after the prompt, tool output included; `response_mask` tells the model's own.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from agentrl.core.errors import InfraError, reported_as
from agentrl.core.user_code import UserFunction, construct
from agentrl.rewards.function import RewardFn, num_turns, reward_scores
from agentrl.rewards.managers import Arguments, BatchManager, Calls, Manager
from agentrl.trajectory.trajectory import Trajectory
from agentrl_verl.default_scores import default_compute_score

SECTION = "reward.reward_manager"


def custom_manager(
    kind: type,
    fn: RewardFn | None,
    more: Mapping[str, Any],
    *,
    config: Any,
    tokenizer: Any,
    reward_fn_key: str,
    timeout: float,
    workers: int,
) -> Manager:
    """The manager that calls an object of `kind`; `config` is the settings in verl's shape, `more` are further
    arguments of the constructor. Without a function it gets verl's default one. Raises UserError."""
    function = default_compute_score if fn is None else _with_kwargs(fn)
    given = {**more, "tokenizer": tokenizer, "compute_score": function, "reward_fn_key": reward_fn_key}
    given |= {"config": config, "num_examine": 0}
    with reported_as(f"{SECTION}.name: {kind.__name__}(...)"):
        if not hasattr(kind, "run_single"):
            manager = construct(kind, given)

            def arrange(arguments: Sequence[Arguments]) -> dict[str, Any]:
                return {"data": as_batch(arguments, reward_fn_key, tokenizer)}

            return BatchManager(
                Calls(RewardFn(partial(_asked, manager), kind.__name__, {}, frozenset()), timeout, 1), arrange
            )
        return OneByOne(partial(construct, kind, given), reward_fn_key, tokenizer, timeout, workers)


class OneByOne(Manager):
    """`run_single`, `workers` at once."""

    def __init__(
        self, make: Callable[[], Any], reward_fn_key: str, tokenizer: Any, timeout: float, workers: int
    ) -> None:
        self.make = make
        self.key, self.tokenizer, self.timeout = reward_fn_key, tokenizer, timeout
        self._run: UserFunction | None = None
        self._slots = asyncio.Semaphore(workers)

    async def __call__(self, given: Arguments, key: str = "") -> Any:
        if self._run is None:  # here, because its constructor may want the running event loop
            with reported_as(SECTION):
                self._run = UserFunction(self.make().run_single, owner="the reward manager", fix="")
        async with self._slots:
            said = await self._run.run((as_batch([given], self.key, self.tokenizer),), {}, timeout=self.timeout)
        if not isinstance(said, Mapping) or "reward_score" not in said:
            raise InfraError(f"run_single returned {said!r:.80}; it must be a dict with reward_score")
        return {**said.get("reward_extra_info", {}), "score": said["reward_score"]}


def as_batch(given: Sequence[Arguments], reward_fn_key: str, tokenizer: Any) -> Any:
    """The trajectories' arguments as a DataProto; prompts padded on the left, responses on the right."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from agentrl_verl.data_proto import DataProto
    from agentrl_verl.tensors import compute_position_id_with_mask

    trajectories: list[Trajectory] = [each["trajectory"] for each in given]
    pad = tokenizer.pad_token_id or 0

    def column(values: list[list[Any]], side: str, fill: float = 0) -> Any:
        tensors = [torch.tensor(value) for value in values]
        return pad_sequence(tensors, batch_first=True, padding_value=fill, padding_side=side)

    ledgers = [trajectory.ledgers[-1] for trajectory in trajectories]
    ends = [ledger.prompt_length for ledger in ledgers]
    parts = list(zip(ledgers, ends, strict=True))
    prompts = column([ledger.ids[:end] for ledger, end in parts], "left", pad)
    responses = column([ledger.ids[end:] for ledger, end in parts], "right", pad)
    there = [
        column([[1] * end for end in ends], "left"),
        column([[1] * (len(led) - end) for led, end in parts], "right"),
    ]
    attention = torch.cat(there, -1)
    tensors = {"prompts": prompts, "responses": responses, "input_ids": torch.cat([prompts, responses], -1)}
    tensors |= {"attention_mask": attention, "position_ids": compute_position_id_with_mask(attention)}
    tensors["response_mask"] = column([ledger.mask[end:] for ledger, end in parts], "right")
    tensors["rollout_log_probs"] = column([ledger.logprobs[end:] for ledger, end in parts], "right")
    rows = [_others(trajectory, reward_fn_key) for trajectory in trajectories]
    names = dict.fromkeys(name for row in rows for name in row)
    others = {name: [row.get(name) for row in rows] for name in names}
    return DataProto.from_dict(tensors, others, {"validate": trajectories[0].validates})


def _others(trajectory: Trajectory, reward_fn_key: str) -> dict[str, Any]:
    """The row's columns and what the conversation left, under verl's names."""
    row = trajectory.row
    return row.others | {
        reward_fn_key: row.data_source,
        "data_source": row.data_source,
        "ability": row.ability,
        "reward_model": dict(row.reward_model),
        "extra_info": dict(row.extra_info),
        "raw_prompt": row.prompt,
        "uid": row.uid,
        "index": row.extra_info.get("index", 0),
        "messages": {"messages": trajectory.messages},
        "tool_extra_fields": dict(trajectory.extra),
        "reward_scores": reward_scores(trajectory),
        "__num_turns__": num_turns(trajectory),
    }


def _asked(manager: Any, data: Any) -> list[dict[str, Any]]:
    """Scores of an older manager: a tensor [B, responses], whose sums they are, or that and further values."""
    said = manager(data, return_dict=True) if "return_dict" in inspect.signature(manager).parameters else manager(data)
    rewards = said["reward_tensor"] if isinstance(said, Mapping) else said
    extra = said.get("reward_extra_info", {}) if isinstance(said, Mapping) else {}
    return [
        {key: values[i] for key, values in extra.items() if len(values) == len(rewards)} | {"score": float(row.sum())}
        for i, row in enumerate(rewards)
    ]


def _with_kwargs(fn: RewardFn) -> Callable[..., Any]:
    """The function with its `reward_kwargs`; an async one stays one, which managers look at."""
    return partial(fn.function, **fn.kwargs) if fn.kwargs else fn.function
