"""Base classes and registry for reward managers written for verl: `__call__(data)` up to 0.7, `run_single(data)` since.

agentrl_verl.custom_managers drives them. The ready-made ones here are for those who derive from them or call them.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import torch

from agentrl_verl.data_proto import DataProto
from agentrl_verl.default_scores import default_compute_score

Kind = TypeVar("Kind", bound=type)
RawRewardFn = Callable[..., Any]

REWARD_MANAGERS: dict[str, type] = {}
"""By the name that users gave them."""


def register(name: str) -> Callable[[Kind], Kind]:
    """A decorator that makes a class known to `reward.reward_manager.name`."""

    def decorate(kind: Kind) -> Kind:
        REWARD_MANAGERS[name] = kind
        return kind

    return decorate


def get_reward_manager_cls(name: str) -> type:
    """The class of that name. Raises ValueError."""
    if name not in REWARD_MANAGERS:
        raise ValueError(f"there is no reward manager {name!r}; there are {', '.join(REWARD_MANAGERS) or 'none'}")
    return REWARD_MANAGERS[name]


class AbstractRewardManager:
    """verl's up to 0.7: all samples of a step at once."""

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: RawRewardFn | None = None,
        reward_fn_key: str = "data_source",
        **reward_kwargs: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.compute_score: RawRewardFn = compute_score or default_compute_score
        self.reward_fn_key = reward_fn_key
        self.reward_kwargs = reward_kwargs

    def __call__(self, data: DataProto, return_dict: bool = False) -> Any:
        """A float tensor [B, responses], or {"reward_tensor", "reward_extra_info"}."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__()")


class NaiveRewardManager(AbstractRewardManager):
    """Each sample by itself."""

    def __call__(self, data: DataProto, return_dict: bool = False) -> Any:
        """Scores on the last token of each response."""
        arguments = (told_of(item, self.tokenizer, self.reward_fn_key) for item in data)
        return _placed(data, [self.compute_score(**given) for given in arguments], return_dict)


class BatchRewardManager(AbstractRewardManager):
    """One call with lists."""

    def verify(self, data: DataProto) -> list[Any]:
        """What the function says of each sample."""
        arguments = [told_of(item, self.tokenizer, self.reward_fn_key) for item in data]
        names = {"data_source": "data_sources", "solution_str": "solution_strs"}
        names |= {"ground_truth": "ground_truths", "extra_info": "extra_infos"}
        columns = {plural: [given[name] for given in arguments] for name, plural in names.items()}
        return list(self.compute_score(**columns, **self.reward_kwargs))

    def __call__(self, data: DataProto, return_dict: bool = False) -> Any:
        """Scores on the last token of each response."""
        return _placed(data, self.verify(data), return_dict)


class RewardManagerBase:
    """verl's since 0.7: one sample, asynchronously."""

    _class_initialized: ClassVar[bool] = False

    def __init__(self, config: Any, tokenizer: Any, compute_score: RawRewardFn | None = None, **_: Any) -> None:
        from agentrl_verl.tracing import get_event_loop

        self.config = config
        self.tokenizer = tokenizer
        self.compute_score = compute_score
        self.loop = get_event_loop()
        self.init_class(config, tokenizer)

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any) -> None:
        """What all objects share, once."""
        cls._class_initialized = True

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """{"reward_score", "reward_extra_info"} of the one sample in `data`."""
        raise NotImplementedError(f"{type(self).__name__} does not define run_single()")


class NaiveRewardLoop(RewardManagerBase):
    """Asks the reward function."""

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: RawRewardFn | None = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score or default_compute_score)
        self.is_async_reward_score = inspect.iscoroutinefunction(self.compute_score)
        self.reward_router_address = reward_router_address
        self.reward_model_tokenizer = reward_model_tokenizer

    def arguments(self, item: Any) -> dict[str, Any]:
        """The arguments of the reward function, of one sample."""
        return told_of(item, self.tokenizer, "data_source")

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """The function's score; other values of its dict as extra info."""
        given, function = self.arguments(data[-1]), self.compute_score
        assert function is not None
        if self.reward_router_address is not None:
            given["reward_router_address"] = self.reward_router_address
            given["reward_model_tokenizer"] = self.reward_model_tokenizer
        said = await function(**given) if self.is_async_reward_score else await asyncio.to_thread(function, **given)
        score = said["score"] if isinstance(said, Mapping) else said
        return {"reward_score": score, "reward_extra_info": dict(said) if isinstance(said, Mapping) else {"acc": said}}


@register("gdpo")
class GDPORewardManager(NaiveRewardLoop):
    """Tells the reward function the name of the run, as `extra_info["experiment_name"]`."""

    def arguments(self, item: Any) -> dict[str, Any]:
        """The arguments of the reward function, of one sample."""
        given = super().arguments(item)
        given["extra_info"]["experiment_name"] = self.config.trainer.experiment_name
        return given


def told_of(item: Any, tokenizer: Any, reward_fn_key: str) -> dict[str, Any]:
    """The four arguments of a reward function, of one sample; the solution holds every token of the response."""
    responses = item.batch["responses"]
    length = int(item.batch["attention_mask"][-responses.shape[-1] :].sum())
    others = item.non_tensor_batch
    extra_info = dict(others.get("extra_info") or {}) | dict(others.get("tool_extra_fields") or {})
    extra_info |= {"num_turns": others.get("__num_turns__"), "rollout_reward_scores": others.get("reward_scores", {})}
    return {
        "data_source": others[reward_fn_key],
        "solution_str": tokenizer.decode(responses[:length].tolist(), skip_special_tokens=True),
        "ground_truth": others["reward_model"].get("ground_truth"),
        "extra_info": extra_info,
    }


def _placed(data: DataProto, said: list[Any], return_dict: bool) -> Any:
    """Scores at the last token of each response, as verl's managers return them."""
    responses = data.batch["responses"]
    lengths = data.batch["attention_mask"][:, -responses.shape[-1] :].sum(-1)
    rewards = torch.zeros_like(responses, dtype=torch.float32)
    dicts = [score if isinstance(score, Mapping) else {"score": score} for score in said]
    for i, score in enumerate(dicts):
        rewards[i, int(lengths[i]) - 1] = float(score["score"])
    if not return_dict:
        return rewards
    return {"reward_tensor": rewards, "reward_extra_info": {key: [d.get(key) for d in dicts] for key in dicts[0]}}
