"""Builds what the trajectories of a run share, and their scorer, from the settings."""

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from agentrl.chat import Chat
from agentrl.chat.byte_level import without_special
from agentrl.config.derived import own_loops
from agentrl.config.schema import Config
from agentrl.config.schema.reward import Reward, RewardModel
from agentrl.core.errors import UserError
from agentrl.core.numbers import limit_of
from agentrl.core.plugins import load_attribute
from agentrl.core.sandbox import Sandbox
from agentrl.core.shares import share_of
from agentrl.core.user_code import UserFunction
from agentrl.data.dataset import scored_by_rollout
from agentrl.engines.engine import Engine
from agentrl.engines.sharing import model_length
from agentrl.interactions import load_interactions
from agentrl.rewards.function import RewardFn, load_reward_function, reward_function
from agentrl.rewards.managers import Manager, custom_manager, manager_class, manager_for, server_arguments, takes_lists
from agentrl.rewards.ready_made import SOURCE_FUNCTION, known_source
from agentrl.rewards.scorer import Judge, Scorer, ScoreSources
from agentrl.rewards.terms import Term, load_terms
from agentrl.rollout.episode import Limits
from agentrl.rollout.loops import RolloutContext
from agentrl.rollout.user_objects import NO_OBJECTS, UserObjects
from agentrl.tools import load_tools
from agentrl.training import device_for, load_processor, stop_token_ids
from agentrl.training.model.loading import load_tokenizer_from

log = logging.getLogger(__name__)


def rollout_context(
    config: Config, tokenizer: Any, engine: Engine, sandbox: Sandbox, objects: UserObjects = NO_OBJECTS
) -> RolloutContext:
    """Engine, chat format, tools and users of all trajectories. Raises UserError."""
    multi_turn = config.rollout.multi_turn
    chat = Chat(
        tokenizer,
        format=multi_turn.format,
        check=multi_turn.tokenization_sanity_check_mode,
        template_kwargs=config.data.apply_chat_template_kwargs,
        processor=load_processor(config.model, tokenizer, config.data.mm_processor_kwargs),
        stop_token_ids=stop_token_ids(config.model),
    )
    tools = load_tools(
        multi_turn.tool_config_path if multi_turn.enable and objects.tools is None else None,
        multi_turn.function_tool_path if multi_turn.enable and objects.tools is None else None,
        given=objects.tools or (),
        max_response=multi_turn.max_tool_response_length,
        unit=multi_turn.tool_response_unit,
        side=multi_turn.tool_response_truncate_side,
        tokenizer=tokenizer,
        sandbox=sandbox,
    )
    interactions = load_interactions(
        multi_turn.interaction_config_path if multi_turn.enable and objects.interactions is None else None,
        given=objects.interactions or (),
    )
    inference, on_turn = multi_turn.use_inference_chat_template, callback(multi_turn.completion_callback)
    sides = {name: side for side, name in enumerate(config.model.policies)}
    return RolloutContext(engine, chat, tools, interactions, limits(config), inference, on_turn, config, sides)


def check_format(env: RolloutContext, given: str | None) -> None:
    """Warn when the format does not read the template's calls. Raises UserError when tools could not be called at all,
    and no format is `given`."""
    unread = env.chat.unread() if len(env.tools) else None
    if unread is None:
        return
    if given is None and env.chat.template.shows_calls:
        raise UserError(unread)
    log.warning("%s", unread)


def check_scores(env: RolloutContext, scorer: Scorer) -> None:
    """Warn of scores of tools and interactions that are reported and not added to the reward."""
    tools, interactions = scorer.left_out
    scoring = [name for name, runner in env.tools.runners.items() if runner.scores]
    for left_out, names, method, key in (
        (tools, scoring, "calc_reward", "reward.tool_weight"),
        (interactions, [*env.interactions.runners], "calculate_score", "reward.interaction_weight"),
    ):
        if left_out and names:
            log.warning(
                "the reward function alone gives the reward: %s of %s is reported and not added; %s=1 adds it",
                method,
                ", ".join(names),
                key,
            )


def sandbox_for(config: Config) -> Sandbox:
    """The sandbox for code that models write."""
    sandbox_fusion = config.reward.sandbox_fusion
    return Sandbox(
        sandbox_fusion.url,
        max_concurrent=share_of(sandbox_fusion.max_concurrent, "reward.sandbox_fusion.max_concurrent"),
        memory_limit_mb=sandbox_fusion.memory_limit_mb,
        sessions=share_of(config.rollout.max_concurrent_trajectories, "rollout.max_concurrent_trajectories"),
    )


def limits(config: Config) -> Limits:
    """The limits of a trajectory."""
    data, rollout = config.data, config.rollout
    multi_turn = rollout.multi_turn
    return Limits(
        prompt_length=data.max_prompt_length,
        response_length=data.max_response_length,
        model_length=model_length(config),
        truncation=data.truncation,
        images=sys.maxsize if rollout.limit_images is None else rollout.limit_images,
        assistant_turns=limit_of(multi_turn.max_assistant_turns),
        user_turns=limit_of(multi_turn.max_user_turns),
        parallel_calls=multi_turn.max_parallel_calls,
        consecutive_errors=multi_turn.max_consecutive_errors,
    )


def scorer(
    config: Config, tokenizer: Any, sandbox: Sandbox, judge: Any = None, objects: UserObjects = NO_OBJECTS
) -> Scorer:
    """The scorer of the run's trajectories. `judge`: the reward model's network, when another process has loaded it.
    Raises UserError."""
    reward, multi_turn = config.reward, config.rollout.multi_turn
    function, manager = _reward_function(config, tokenizer, objects.reward)
    tools = multi_turn.tool_config_path or multi_turn.function_tool_path
    by_rollout = objects.rows[0].scores_itself if objects.rows else scored_by_rollout(config.data)
    return Scorer(
        function,
        reward,
        without_special(tokenizer),
        manager=manager,
        terms=_terms(reward, objects),
        max_response_length=config.data.max_response_length,
        sandbox=sandbox,
        reward_model=judging(config, tokenizer, judge),
        sources=ScoreSources(
            tools=multi_turn.enable and bool(tools),
            interactions=multi_turn.enable and bool(multi_turn.interaction_config_path),
            loops=own_loops(config.rollout) or (function is None and by_rollout),
            needed=config.distillation.use_rewards,
        ),
        policies=config.model.policies,
    )


def _reward_function(
    config: Config, tokenizer: Any, given: Callable[..., Any] | None
) -> tuple[RewardFn | None, Manager | None]:
    """The reward function, `given` or named, and its manager where `reward.reward_manager.name` does not decide."""
    reward_manager, served = config.reward.reward_manager, _served(config.reward.reward_model)
    function = _own_function(config.reward, given, served)  # its file may register the manager
    kind = manager_class(reward_manager.name, reward_manager.module.path)
    if kind is not None:
        return None, custom_manager(kind, function, config, tokenizer, served)
    if function is None and not config.reward.functions and known_source(config.data):
        function = load_reward_function(None, SOURCE_FUNCTION, {})
        assert function is not None
        return function, manager_for(config.reward, function, "naive")  # async, and may ask for the sandbox
    return function, None


def _terms(reward: Reward, objects: UserObjects) -> list[Term]:
    """The functions of `reward.functions`, each with a manager: a class of the user's calls its one function alone."""
    kind = reward.reward_manager.name if takes_lists(reward) is not None else "naive"
    offered = _served(reward.reward_model)
    found = load_terms(reward.functions, objects.rewards, batch=kind == "batch", offered=offered)
    return [Term(manager_for(reward, fn, kind), fn, reward.functions[name].weight, name) for name, fn in found.items()]


def _own_function(reward: Reward, given: Callable[..., Any] | None, offered: Mapping[str, Any]) -> RewardFn | None:
    """The function that is `given`, or else the one that the settings name."""
    custom_reward_function, batch = reward.custom_reward_function, takes_lists(reward)
    kwargs = (reward.reward_kwargs if batch else {}) | custom_reward_function.reward_kwargs
    if given is not None:
        return reward_function(given, kwargs, batch=batch, offered=offered)
    path, name = custom_reward_function.path, custom_reward_function.name
    return load_reward_function(path, name, kwargs, batch=batch, offered=offered)


def _served(reward_model: RewardModel) -> dict[str, Any]:
    """Address and tokenizer of a generative reward model."""
    model = reward_model.model
    if not server_arguments(reward_model) or model.path is None:
        return server_arguments(reward_model)
    key = "reward.reward_model.model.path"
    tokenizer = load_tokenizer_from(model.path, key, trust_remote_code=model.trust_remote_code)
    return server_arguments(reward_model, tokenizer)


def scored_together(config: Config) -> bool:
    """Whether rewards need one place for all trajectories: a manager that may see a batch, or a network."""
    return config.reward.reward_model.classifies or takes_lists(config.reward) is not False


def judging(config: Config, tokenizer: Any, judge: Any) -> Judge | None:
    """The reward model; None without one. Raises UserError."""
    reward_model = config.reward.reward_model
    if not reward_model.classifies:
        return None
    from agentrl.training.model import reward_model as network

    if judge is None:
        named, use_shm = reward_model.device, config.model.use_shm
        device = torch.device(named) if named else device_for(config.trainer.device)
        judge = network.Judge(reward_model, device=device, use_shm=use_shm)
    return network.RewardWorker(reward_model, judge, policy_vocabulary=len(tokenizer))


def callback(path: str | None) -> UserFunction | None:
    """The function behind `rollout.multi_turn.completion_callback`. Raises UserError."""
    if path is None:
        return None
    module, _, name = path.rpartition(".")
    key = "rollout.multi_turn.completion_callback"
    return UserFunction(load_attribute(module, name, what=key), owner=key)
