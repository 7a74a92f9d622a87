"""The tool agent: turns, tools, interaction, limits, and what ends up in the ledger."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from agentrl.core.errors import InfraError
from agentrl.engines.engine import Sampling
from agentrl.interactions import InteractionSet, load_interactions
from agentrl.rollout.loops import RolloutContext, SingleTurn, ToolAgent
from agentrl.trajectory.ledger import Source
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.rollout.scripted import calls, environment, make_chat, row, says, tools_from

ADD = """
from agentrl.tools import BaseTool

alive = {}
log = []


class AddTool(BaseTool):
    async def create(self, instance_id, start=0, **kwargs):
        alive[instance_id] = start
        return instance_id

    async def execute(self, instance_id, parameters, **kwargs):
        if parameters["a"] == 666:
            raise RuntimeError("the adder is on fire")
        alive[instance_id] += parameters["a"]
        return str(alive[instance_id]), 0.5, {}

    async def calc_reward(self, instance_id, **kwargs):
        return float(alive[instance_id])

    async def release(self, instance_id, **kwargs):
        log.append(alive.pop(instance_id))
"""
ADD_YAML = """
tools:
  - class_name: mine.AddTool
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: add
        description: Adds to a running sum.
        parameters: {type: object, properties: {a: {type: integer}}, required: [a]}
"""
JUDGE = """
from agentrl.interactions import BaseInteraction

finalized = []


class JudgeInteraction(BaseInteraction):
    async def start_interaction(self, instance_id=None, ground_truth=None, **kwargs):
        self.truth = ground_truth
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        right = self.truth in messages[-1]["content"]
        return right, "You are wrong, try again.", float(right), {}

    async def calculate_score(self, instance_id, **kwargs):
        return 0.75

    async def finalize_interaction(self, instance_id, **kwargs):
        finalized.append(instance_id)
"""
JUDGE_YAML = "interaction:\n  - class_name: judge.JudgeInteraction\n    config: {}\n"


async def play(env: RolloutContext, **extra_info: object) -> Trajectory:
    trajectory = Trajectory(row(**extra_info), "k", 0)
    await ToolAgent(env).run(trajectory, Sampling(100, seed=7))
    for ledger in trajectory.ledgers:
        ledger.check()
    return trajectory


def judge(folder: Path) -> InteractionSet:
    (folder / "judge.py").write_text(JUDGE)
    (folder / "judge.yaml").write_text(JUDGE_YAML)
    return load_interactions(str(folder / "judge.yaml"))


async def test_tool_state_lives_through_the_trajectory_and_is_released(tmp_path: Path) -> None:
    tools = tools_from(tmp_path, ADD, ADD_YAML)
    script = says(calls("add", '{"a": 2}'), calls("add", '{"a": 3}'), "The answer is 5 .")
    env, engine = environment(script, tools=tools)
    t = await play(env, tools_kwargs={"add": {"create_kwargs": {"start": 10}}})
    assert [c.response for c in t.tool_calls] == ["12", "15"]
    assert (t.finish, t.turns, t.tool_rewards) == ("stop", 3, {"add": 15.0})
    assert [(r.turn, r.value) for r in t.turn_rewards] == [(0, 0.5), (1, 0.5)]
    # What the model saw is the template's own render of the messages, to the letter.
    assert env.chat.decode(t.ledgers[0].ids) == env.chat.template.render(
        t.messages, env.tools.schemas(None)
    ).removesuffix("\n")
    # Each request continued the ledger: every prompt begins with the one before it.
    prompts = engine.prompts["k"]
    assert all(b[: len(a)] == a for a, b in pairwise(prompts))


async def test_parallel_calls_are_answered_in_order_and_surplus_ones_refused(tmp_path: Path) -> None:
    tools = tools_from(tmp_path, ADD, ADD_YAML)
    three = "".join(calls("add", f'{{"a": {n}}}') for n in (1, 2, 3))
    env, _ = environment(says(three, "The answer is 3 ."), tools=tools, parallel_calls=2)
    t = await play(env)
    assert [m["content"] for m in t.messages if m["role"] == "tool"][:2] == ["1", "3"]
    assert "at most 2" in t.tool_calls[2].response
    assert t.tool_calls[2].outcome is Outcome.MODEL_ERROR


async def test_bad_calls_are_answered_and_the_model_goes_on(tmp_path: Path) -> None:
    tools = tools_from(tmp_path, ADD, ADD_YAML)
    script = says("<tool_call>{oops</tool_call>", calls("add", '{"a": "x"}'), calls("sub", "{}"), "The answer is 5 .")
    env, _ = environment(script, tools=tools)
    t = await play(env)
    assert t.finish == "stop"
    assert [c.outcome for c in t.tool_calls] == [Outcome.MODEL_ERROR] * 3
    assert all(m["content"] for m in t.messages if m["role"] == "tool")


async def test_nothing_but_bad_calls_ends_the_trajectory(tmp_path: Path) -> None:
    tools = tools_from(tmp_path, ADD, ADD_YAML)
    env, _ = environment(says(*[calls("sub", "{}")] * 9), tools=tools, consecutive_errors=3)
    t = await play(env)
    assert (t.finish, t.turns) == ("max_errors", 3)


async def test_failing_tool_is_an_infrastructure_error_and_still_released(tmp_path: Path) -> None:
    tools = tools_from(tmp_path, ADD, ADD_YAML)
    env, _ = environment(says(calls("add", '{"a": 666}')), tools=tools)
    t = Trajectory(row(), "k", 0)
    with pytest.raises(InfraError, match="on fire"):
        await ToolAgent(env).run(t, Sampling(100))
    assert t.tool_calls[0].outcome is Outcome.INFRA_ERROR
    module = tools.runners["add"].methods["execute"].fn.__globals__
    assert module["log"] == [0]
    assert not module["alive"]


async def test_a_release_that_is_cancelled_does_not_keep_the_interaction_from_its_end(tmp_path: Path) -> None:
    env, _ = environment(says("The answer is 5 ."), interactions=judge(tmp_path))
    tools = env.tools.open("k", {}, agent_data=None)

    async def cancelled() -> None:
        raise asyncio.CancelledError

    tools.release = cancelled  # type: ignore[method-assign]
    env.tools.open = lambda *_, **__: tools  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await play(env, interaction_kwargs={"name": "judge", "ground_truth": "5"})
    finalized = env.interactions.runners["judge"].methods["finalize_interaction"].fn.__globals__["finalized"]
    assert len(finalized) == 1


async def test_interaction_replies_until_it_is_content(tmp_path: Path) -> None:
    env, _ = environment(says("The answer is 4 .", "The answer is 5 ."), interactions=judge(tmp_path))
    t = await play(env, interaction_kwargs={"name": "judge", "ground_truth": "5"})
    assert (t.finish, t.turns, t.user_turns, t.interaction_score) == ("terminated", 2, 1, 0.75)
    assert [m["role"] for m in t.messages] == ["user", "assistant", "user", "assistant"]
    # Nothing follows the last answer: the last token is the model's, so a reward on it is not lost.
    assert t.ledgers[0].sources[-1] == Source.MODEL
    assert [r.value for r in t.turn_rewards] == [0.0, 1.0]


async def test_last_answer_within_the_turn_limit_is_judged_but_not_answered(tmp_path: Path) -> None:
    env, _ = environment(says("The answer is 4 .", "No."), interactions=judge(tmp_path), assistant_turns=1)
    t = await play(env, interaction_kwargs={"name": "judge", "ground_truth": "5"})
    assert (t.finish, t.turns, len(t.turn_rewards)) == ("max_turns", 1, 1)
    assert t.ledgers[0].sources[-1] == Source.MODEL


async def test_rows_without_interaction_arguments_have_none(tmp_path: Path) -> None:
    env, _ = environment(says("The answer is 4 ."), interactions=judge(tmp_path))
    t = await play(env)
    assert (t.finish, t.interaction_score) == ("stop", None)


@pytest.mark.prevents("the limit on sequence length never acts")
async def test_an_observation_that_leaves_no_room_ends_the_trajectory_unseen(tmp_path: Path) -> None:
    tools = tools_from(tmp_path, ADD, ADD_YAML)
    call = calls("add", '{"a": 2}')
    used = len(make_chat().tokenizer.encode(call + "<|im_end|>"))
    env, _ = environment(says(call, "never"), tools=tools, response_length=used + 4)
    t = await play(env)
    assert (t.finish, t.turns) == ("length", 1)
    assert t.ledgers[0].response_length == used
    assert t.ledgers[0].sources[-1] == Source.MODEL


async def test_a_turn_cut_by_length_ends_the_trajectory() -> None:
    env, _ = environment(says("The answer is..."))
    t = await play(env)
    assert (t.finish, t.turns) == ("length", 1)
    assert t.ledgers[0].model_tokens == t.ledgers[0].response_length > 0


@pytest.mark.prevents("an interrupted rollout resumes with a full new token budget")
async def test_an_aborted_turn_goes_on_from_its_tokens_with_what_is_left() -> None:
    env, engine = environment(says("The answer", " is 5 ."))
    plain = engine.generate

    async def aborting(token_ids, sampling, *, key, media=()):  # type: ignore[no-untyped-def]
        drawn = await plain(token_ids, sampling, key=key)
        if engine.turns[key] > 1:
            return drawn
        return type(drawn)(drawn.token_ids[:-1], drawn.logprobs[:-1], "abort", 3)

    engine.generate = aborting  # type: ignore[method-assign]
    t = await play(env)
    assert t.messages[-1]["content"] == "The answer is 5 ."
    assert (t.turns, t.finish) == (1, "stop")
    assert engine.prompts["k"][1] == t.ledgers[0].ids[: len(engine.prompts["k"][1])]
    assert len(set(engine.seeds)) == 2  # the rest must not draw the same noise again


async def test_rewritten_history_splits_the_trajectory(tmp_path: Path) -> None:
    # A template that drops what the assistant thought once a later message follows.
    template = (
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>\n{%- endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
    )
    chat = make_chat(chat_template=template)
    script = says("<think>hm</think>The answer is 4 .", "<think>so</think>The answer is 5 .")
    env, engine = environment(script, interactions=judge(tmp_path), inference_template=True, chat=chat)
    t = await play(env, interaction_kwargs={"name": "judge", "ground_truth": "5"})
    assert len(t.ledgers) == 2
    assert "hm" in chat.decode(t.ledgers[0].ids)
    assert "hm" not in chat.decode(t.ledgers[1].ids)
    assert engine.prompts["k"][1] == t.ledgers[1].ids[: t.ledgers[1].prompt_length]
    assert [sum(ledger.mask) > 0 for ledger in t.ledgers] == [True, True]


async def test_single_turn_shows_no_tools(tmp_path: Path) -> None:
    env, _ = environment(says("The answer is 5 ."), tools=tools_from(tmp_path, ADD, ADD_YAML))
    t = Trajectory(row(), "k", 0)
    await SingleTurn(env).run(t, Sampling(100))
    assert "add" not in env.chat.decode(t.ledgers[0].ids)
    assert (t.finish, t.turns) == ("stop", 1)


async def test_without_tools_a_call_is_text(tmp_path: Path) -> None:
    text = 'It says <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call> , and <tool_call>half'
    env, _ = environment(says(text))
    trajectory = await play(env)
    assert (trajectory.turns, trajectory.tool_calls, trajectory.finish) == (1, [], "stop")
    assert trajectory.messages[-1] == {"role": "assistant", "content": text}
