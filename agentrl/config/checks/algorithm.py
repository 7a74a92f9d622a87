"""Checks values of keys, alone and in combination."""

from agentrl.config.derived import compares_in_groups, components_of, needs_critic
from agentrl.config.schema import Actor, Algorithm, Critic, Data, Model, Ref, Reward, Rollout, Trainer
from agentrl.config.schema.distillation import Distillation
from agentrl.core.errors import UserError
from agentrl.core.points import ADVANTAGES, POLICY_LOSS_OFFERED, POLICY_LOSS_OPTIONS, POLICY_LOSSES

ESTIMATOR = "algorithm.adv_estimator"
LOSS = "actor.policy_loss.loss_mode"


def routing_replay(actor: Actor, algorithm: Algorithm) -> None:
    """Check that the routing to replay is recorded."""
    if actor.router_replay.mode == "R2" and algorithm.rollout_correction.bypass_mode:
        raise UserError(
            "actor.router_replay.mode=R2 replays the pass that computes old log-probs, and bypass_mode leaves it out: "
            "set R3"
        )


def group_size(algorithm: Algorithm, rollout: Rollout, trainer: Trainer, distillation: Distillation) -> None:
    """Check that group estimators get several answers per prompt."""
    if algorithm.min_group_size > rollout.n:
        raise UserError(
            f"algorithm.min_group_size={algorithm.min_group_size} with rollout.n={rollout.n}: every group is left out"
        )
    trained = distillation.use_rewards and not trainer.val_only
    if compares_in_groups(algorithm.adv_estimator) and rollout.n == 1 and trained:
        raise UserError(
            f"rollout.n=1 with algorithm.adv_estimator={algorithm.adv_estimator}: in a group of one every advantage "
            "is 0; set rollout.n=8, for example, or algorithm.adv_estimator=reinforce_plus_plus"
        )


def batch_sizes(data: Data, actor: Actor) -> None:
    """Check that mini-batches divide the batch of a step."""
    batch, mini = data.train_batch_size, actor.ppo_mini_batch_size
    if mini > batch:
        raise UserError(
            f"actor.ppo_mini_batch_size={mini} is over data.train_batch_size={batch} (both count prompts): "
            f"set it to {batch} or less"
        )
    if batch % mini:
        fits = [size for size in range(1, batch + 1) if batch % size == 0]
        near = min(fits, key=lambda size: abs(size - mini))
        raise UserError(
            f"data.train_batch_size={batch} is not a multiple of actor.ppo_mini_batch_size={mini} (both "
            f"count prompts): set the latter to {near}, for example"
        )


def correction_words(algorithm: Algorithm) -> None:
    """Rejection and its thresholds fit together, and so do the bounds of the weights."""
    rollout_correction = algorithm.rollout_correction
    cap, rejects = rollout_correction.rollout_is_threshold, rollout_correction.rollout_rs
    if rejects is None and not isinstance(cap, str):
        return
    from agentrl.algorithms.rejection import bounds_of, criteria_of  # torch comes with it

    criteria_of(rejects, rollout_correction.rollout_rs_threshold, rollout_correction.rollout_rs_threshold_lower)
    if bounds_of(cap)[1] < 1:
        raise UserError(f"algorithm.rollout_correction.rollout_is_threshold={cap}: must be at least 1")


def overlong_buffer(reward: Reward, data: Data) -> None:
    """Check the length of the overlong buffer."""
    overlong_buffer = reward.overlong_buffer
    limit = overlong_buffer.max_resp_len or data.max_response_length
    if overlong_buffer.enable and overlong_buffer.len is not None and not 1 <= overlong_buffer.len <= limit:
        named = "reward.overlong_buffer.max_resp_len" if overlong_buffer.max_resp_len else "data.max_response_length"
        raise UserError(f"reward.overlong_buffer.len={overlong_buffer.len}: give 1 to {named}={limit} tokens")


def reward_kwargs(reward: Reward) -> None:
    """Check that a reward manager of the user's own reads the arguments that managers get."""
    manager = reward.reward_manager
    if reward.reward_kwargs and manager.name in ("naive", "dapo", "prime") and not manager.module.path:
        raise UserError(
            "reward.reward_kwargs are arguments of a reward manager of your own; those of the reward function are "
            "reward.custom_reward_function.reward_kwargs"
        )


def scores_in_time(algorithm: Algorithm, reward: Reward) -> None:
    """Check that no step needs scores early if they are computed late."""
    if reward.launch_reward_fn_async and algorithm.filter_groups.enable:
        raise UserError(
            "reward.launch_reward_fn_async with algorithm.filter_groups.enable=true: the scores say whether another "
            "batch is sampled, so a step must wait for them; set it to false"
        )


def group_filter(algorithm: Algorithm, rollout: Rollout, data: Data) -> str | None:
    """Check that filtered groups have several answers."""
    filtered = algorithm.filter_groups.enable
    if filtered and rollout.n == 1:
        raise UserError(
            "algorithm.filter_groups.enable=true with rollout.n=1: one answer never differs from the others; "
            "set rollout.n=8, for example"
        )
    if data.gen_batch_size and not filtered:
        return "data.gen_batch_size has no effect without algorithm.filter_groups.enable=true"
    return None


def critic_fits(algorithm: Algorithm, critic: Critic) -> None:
    """Check that a critic is used exactly if the estimator needs one."""
    needed, estimator = needs_critic(algorithm.adv_estimator), f"{ESTIMATOR}={algorithm.adv_estimator}"
    if critic.enable is False and needed:
        raise UserError(f"critic.enable=false: {estimator} needs a critic; remove critic.enable")
    if critic.enable and not needed and algorithm.adv_estimator in ADVANTAGES.declared:
        raise UserError(f"critic.enable=true: {estimator} uses no critic; set it to gae, or remove critic.enable")


def reward_parts(algorithm: Algorithm, reward: Reward) -> str | None:
    """Check that an estimator which compares parts of the reward has some."""
    if not components_of(algorithm, reward) and (algorithm.gdpo_reward_keys or algorithm.gdpo_reward_weights):
        return f"algorithm.gdpo_reward_keys and _weights have no effect without {ESTIMATOR}=gdpo"
    return None


def loss_options(actor: Actor) -> str | None:
    """Options that a policy loss reads, and that no key of their own sets: numbers where they are built in."""
    policy_loss = actor.policy_loss
    for name, value in policy_loss.options.items():
        if name in POLICY_LOSS_OPTIONS and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise UserError(f"actor.policy_loss.options.{name}={value}: must be a number")
    read = POLICY_LOSSES.keywords(policy_loss.loss_mode, LOSS)
    for name in policy_loss.options.keys() - POLICY_LOSS_OPTIONS:
        if name in POLICY_LOSS_OFFERED or name not in read:
            free = sorted(read.difference(POLICY_LOSS_OFFERED))
            reads = f"it reads {', '.join(free)}" if free else "it reads none"
            raise UserError(f"actor.policy_loss.options.{name}: {policy_loss.loss_mode} has no such option; {reads}")
    changed = {name for name, value in policy_loss.options.items() if value != POLICY_LOSS_OPTIONS.get(name)}
    if dead := sorted(changed.intersection(POLICY_LOSS_OPTIONS) - read):
        return f"actor.policy_loss.options.{dead[0]} has no effect: {policy_loss.loss_mode} does not read it"
    return None


def bypassed(algorithm: Algorithm, actor: Actor) -> str | None:
    """Check that loss_type=reinforce is not combined with another policy loss."""
    correction, loss = algorithm.rollout_correction, actor.policy_loss.loss_mode
    if correction.loss_type == "reinforce" and not correction.bypass_mode:
        return "algorithm.rollout_correction.loss_type has no effect without bypass_mode=true"
    if correction.loss_type == "reinforce" and loss not in ("vanilla", "gpg"):
        raise UserError(
            f"algorithm.rollout_correction.loss_type=reinforce with actor.policy_loss.loss_mode={loss}"
            ": only one loss can be used; remove one of them"
        )
    return None


def one_kl(actor: Actor, algorithm: Algorithm) -> None:
    """Check that only one KL penalty is on."""
    if actor.use_kl_loss and algorithm.use_kl_in_reward:
        raise UserError(
            "actor.use_kl_loss and algorithm.use_kl_in_reward are both on: the KL would count twice; set one to false"
        )


def refreshed_reference(ref: Ref, model: Model, actor: Actor, algorithm: Algorithm) -> str | None:
    """Check that a reference which is refreshed has weights of its own."""
    if ref.update_freq == -1:
        return None
    if model.lora_rank:
        raise UserError(
            "ref.update_freq with model.lora_rank: the reference is the model without its adapter and cannot be "
            "refreshed; set ref.update_freq=-1"
        )
    used = actor.use_kl_loss or algorithm.use_kl_in_reward
    return None if used else "ref.update_freq has no effect without actor.use_kl_loss or algorithm.use_kl_in_reward"


def tools_without_turns(rollout: Rollout) -> str | None:
    """Note about tools that are set while multi-turn is off."""
    names = ("tool_config_path", "function_tool_path", "interaction_config_path")
    given = [f"rollout.multi_turn.{name}" for name in names if getattr(rollout.multi_turn, name)]
    if rollout.multi_turn.enable or rollout.agent.default_agent_loop or not given:
        return None
    return f"{' and '.join(given)} without rollout.multi_turn.enable=true: rows run as single turns"
