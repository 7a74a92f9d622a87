"""Agent loops as people wrote them for verl, run unchanged: what they are given, and what is trained on of it."""

from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.interactions import load_interactions
from agentrl.rollout.attempt import attempt
from agentrl.rollout.loops import loop_class
from agentrl.tools import load_tools
from agentrl.trajectory.ledger import Source
from agentrl.trajectory.trajectory import Trajectory
from agentrl_verl.server_manager import kept
from tests.rollout.scripted import END, calls, environment, row, says

REACT = Path(__file__).parent / "files" / "react.py"
IMPORTS = "from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register\n"

V05 = (
    IMPORTS
    + """
@register("old_kind")
class Old(AgentLoopBase):
    async def run(self, messages, sampling_params):
        prompt_ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
        ids = await self.server_manager.generate(request_id="a", prompt_ids=prompt_ids, sampling_params=sampling_params)
        return AgentLoopOutput(
            prompt_ids=prompt_ids, response_ids=ids, response_mask=[1] * len(ids), num_turns=2, metrics={}
        )
"""
)

OWN_WORDS = (
    IMPORTS
    + """
@register("own_words")
class OwnWords(AgentLoopBase):
    own = None

    async def run(self, sampling_params, **kwargs):
        prompt = await self.apply_chat_template(list(kwargs["raw_prompt"]))
        out = await self.server_manager.generate("a", prompt_ids=prompt, sampling_params=sampling_params)
        added = self.tokenizer.encode(" again", add_special_tokens=False)
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=out.token_ids + added,
            response_mask=[1] * (len(out.token_ids) + len(added)),
            response_logprobs=None if self.own is None else out.log_probs + [self.own] * len(added),
            num_turns=2,
            metrics={},
            reward_score=0.5,
            extra_fields={"answer_to": kwargs["problem_id"], "reward_extra_info": {"acc": 1.0}},
        )


@register("own_words_with_logprobs")
class WithLogprobs(OwnWords):
    own = -0.75
"""
)

PENALTY = (
    IMPORTS
    + """
@register("penalty")
class Penalty(AgentLoopBase):
    async def run(self, sampling_params, **kwargs):
        prompt = await self.apply_chat_template(list(kwargs["raw_prompt"]))
        wishes = {**sampling_params, "presence_penalty": 1.2}
        await self.server_manager.generate("a", prompt_ids=prompt, sampling_params=wishes)
"""
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the loop `name` of a file; the trajectory, its environment and engine."""
    monkeypatch.chdir(tmp_path)
    settings = compose(
        ["model.path=m", "data.train_files=x", "data.max_response_length=256"], config_name="train", checks=()
    )

    async def run(source, name, script, *, yaml=None, more=None, tools=None, interactions=None, **limits):
        stem = f"loops_{abs(hash((source, str(tmp_path))))}"
        (tmp_path / f"{stem}.py").write_text(source)
        (tmp_path / "agent.yaml").write_text((yaml or f"- name: {name}\n  _target_: STEM.KIND\n").replace("STEM", stem))
        env, engine = environment(script, tools=tools, interactions=interactions, **limits)
        object.__setattr__(env, "settings", more or settings)
        subject = row(index=7)
        subject.others["problem_id"] = "p7"
        if tools:
            kwargs = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "5"}}}
            subject.extra_info["tools_kwargs"] = kwargs
        if interactions:
            kwargs = {"name": "gsm8k", "query": "2 + 3", "ground_truth": "5"}
            subject.extra_info["interaction_kwargs"] = kwargs
        trajectory = Trajectory(subject, "0/r/0", 0)
        kind = loop_class(name, "agent.yaml")
        await kind(env).run(trajectory, Sampling(64, temperature=0.7, seed=1))
        for ledger in trajectory.ledgers:
            ledger.check()
        return trajectory, env, engine

    return run


def trained(trajectory, env):
    ledger = trajectory.ledgers[-1]
    return env.chat.decode([token for token, mask in zip(ledger.ids, ledger.mask, strict=True) if mask])


async def test_of_0_5_with_messages_and_a_list_of_ids(run):
    yaml = "- name: old_kind\n  _target_: STEM.Old\n"
    trajectory, env, engine = await run(V05, "old_kind", says("The answer is 5 ."), yaml=yaml)
    assert trained(trajectory, env) == f"The answer is 5 .{END}"
    assert trajectory.ledgers[0].versions[-1] == engine.version
    assert trajectory.ledgers[0].logprobs[-1] == -0.25
    assert (trajectory.turns, trajectory.finish, trajectory.reward) == (1, "stop", None)
    assert trajectory.messages[-1]["content"] == "The answer is 5 ."


async def test_a_react_loop_with_a_tool(run, tmp_path):
    (tmp_path / "tools.yaml").write_text(
        "tools:\n  - class_name: verl.tools.gsm8k_tool.Gsm8kTool\n    config: {type: native}\n"
    )
    settings = compose(
        [
            "rollout.multi_turn.enable=true",
            "rollout.multi_turn.tool_config_path=tools.yaml",
            "data.max_response_length=256",
        ],
        config_name="train",
        checks=(),
    )
    call = calls("calc_gsm8k_reward", '{"answer": "5"}')
    yaml = "- name: react_agent\n  _target_: STEM.ReactLoop\n  max_calls: 1\n"
    trajectory, env, engine = await run(REACT.read_text(), "react_agent", says(call, "5"), yaml=yaml, more=settings)
    ledger = trajectory.ledgers[0]
    assert trained(trajectory, env) == f"{call}{END}5{END}"
    seen = env.chat.decode([t for t, source in zip(ledger.ids, ledger.sources, strict=True) if source == Source.TOOL])
    assert "reward=1.0" in seen
    assert engine.prompts["0/r/0"][1] == ledger.ids[: -len(env.chat.tokenizer.encode(f"5{END}"))]
    assert trajectory.turns == 2
    assert ledger.turns[-1] == 1


async def test_tokens_that_no_engine_drew_are_not_trained_on(run, caplog):
    yaml = "- name: own_words\n  _target_: STEM.OwnWords\n"
    trajectory, env, _ = await run(OWN_WORDS, "own_words", says("5"), yaml=yaml)
    assert trained(trajectory, env) == f"5{END}"
    assert env.chat.decode(trajectory.ledgers[0].ids).endswith(" again")
    assert "OwnWords gives mask 1" in caplog.text
    assert (trajectory.reward, trajectory.reward_extra) == (0.5, {"acc": 1.0})
    assert trajectory.extra == {"answer_to": "p7"}


async def test_unless_the_loop_has_log_probs_of_its_own(run):
    yaml = "- name: own_words_with_logprobs\n  _target_: STEM.WithLogprobs\n"
    trajectory, env, _ = await run(OWN_WORDS, "own_words_with_logprobs", says("5"), yaml=yaml)
    assert trained(trajectory, env) == f"5{END} again"
    assert trajectory.ledgers[0].logprobs[-1] == -0.75


async def test_what_engines_cannot_do_is_refused(run):
    yaml = "- name: penalty\n  _target_: STEM.Penalty\n"
    with pytest.raises(UserError, match=r"presence_penalty=1\.2"):
        await run(PENALTY, "penalty", says("5"), yaml=yaml)


async def test_masks_of_another_length_are_an_error(run):
    source = V05.replace("[1] * len(ids)", "[1]").replace("old_kind", "short_mask")
    with pytest.raises(InfraError, match="1 mask entries"):
        await run(source, "short_mask", says("5"), yaml="- name: short_mask\n  _target_: STEM.Old\n")


def test_a_registered_name_needs_no_yaml(tmp_path):
    from agentrl.core.plugins import load_user_file

    (tmp_path / "named.py").write_text(V05.replace("old_kind", "by_name_alone"))
    load_user_file(tmp_path / "named.py", where="test")
    assert loop_class("by_name_alone").kind.__name__ == "Old"  # type: ignore[attr-defined]


DERIVED = """
import asyncio
from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.tools.schemas import ToolResponse


@register("plain_child")
class PlainChild(ToolAgentLoop):
    pass


@register("caches")
class Caches(ToolAgentLoop):
    @classmethod
    def init_class(cls, config, tokenizer, processor, **kwargs):
        super().init_class(config, tokenizer, processor, **kwargs)
        cls.known = sorted(cls.tools)

    async def _call_tool(self, tool_call, tools_kwargs, agent_data):
        response, reward, metrics = await super()._call_tool(tool_call, tools_kwargs, agent_data)
        agent_data.extra_fields["calls"] = agent_data.extra_fields.get("calls", 0) + 1
        return ToolResponse(text=f"[{','.join(self.known)}] {response.text}"), reward, metrics

    async def _handle_processing_tools_state(self, agent_data):
        state = await super()._handle_processing_tools_state(agent_data)
        return AgentState.TERMINATED if agent_data.extra_fields["calls"] >= 2 else state


@register("older_call")
class OlderCall(ToolAgentLoop):
    async def _call_tool(self, tool_call):
        return {"role": "tool", "content": "older: " + tool_call.arguments}


@register("own_tool_objects")
class OwnToolObjects(ToolAgentLoop):
    async def _call_tool(self, tool_call, tools_kwargs, agent_data):
        tool = self.tools[tool_call.name]
        key, _ = await tool.create(create_kwargs={"ground_truth": "5"})
        try:
            response, reward, _ = await tool.execute(key, {"answer": "5"}, agent_data=agent_data)
        finally:
            await tool.release(key)
        return response, reward, {}


@register("own_run")
class OwnRun(ToolAgentLoop):
    async def run(self, sampling_params, **kwargs):
        data = AgentData(
            messages=list(kwargs["raw_prompt"]), image_data=None, metrics={}, request_id="r",
            tools_kwargs=kwargs.get("tools_kwargs", {}), interaction=None, interaction_kwargs={},
        )
        await self._handle_pending_state(data, sampling_params)
        state = await self._handle_generating_state(data, sampling_params)
        assert state == AgentState.PROCESSING_TOOLS and data.tool_calls[0].name == "calc_gsm8k_reward"
        return self._output(data)


@register("thinks_first")
class ThinksFirst(ToolAgentLoop):
    async def _handle_pending_state(self, agent_data, sampling_params):
        agent_data.messages = [{"role": "system", "content": "Think ."}, *agent_data.messages]
        return await super()._handle_pending_state(agent_data, sampling_params)


@register("wrong_state")
class WrongState(ToolAgentLoop):
    async def _handle_pending_state(self, agent_data, sampling_params):
        await super()._handle_pending_state(agent_data, sampling_params)


@register("partial_rollouts")
class Partial(ToolAgentLoop):
    def __init__(self, trainer_config, **kwargs):
        super().__init__(trainer_config, **kwargs)
        self.partial = trainer_config.config.async_training.partial_rollout


@register("of_0_5")
class Of05(ToolAgentLoop):
    async def run(self, messages, sampling_params):
        return await super().run(messages, sampling_params)


@register("one_turn")
class OneTurn(SingleTurnAgentLoop):
    async def run(self, sampling_params, **kwargs):
        output = await super().run(sampling_params, **kwargs)
        output.extra_fields["mine"] = 1
        return output


@register("no_output")
class NoOutput(ToolAgentLoop):
    async def run(self, sampling_params, **kwargs):
        return None
"""

CALL = calls("calc_gsm8k_reward", '{"answer": "5"}')


@pytest.fixture
def derived(run, tmp_path):
    """The same with verl's GSM8K tool, of a class of DERIVED."""

    async def derived(kind, *turns, interactions=None, source=DERIVED, **limits):
        (tmp_path / "tools.yaml").write_text(
            "tools:\n  - class_name: verl.tools.gsm8k_tool.Gsm8kTool\n    config: {type: native}\n"
        )
        tools = load_tools("tools.yaml", None, max_response=256, unit="characters", side="middle")
        target = "verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop" if kind == "Parent" else f"STEM.{kind}"
        yaml = f"- name: derived\n  _target_: {target}\n"
        settings = compose(
            [
                "model.path=m",
                "data.train_files=x",
                "rollout.multi_turn.enable=true",
                "rollout.multi_turn.tool_config_path=tools.yaml",
                "data.max_response_length=256",
            ],
            config_name="train",
            checks=(),
        )
        given = {"tools": tools, "more": settings, "interactions": interactions}
        return await run(source, "derived", says(*turns), yaml=yaml, **given, **limits)

    return derived


def tool_text(trajectory, env):
    ledger = trajectory.ledgers[-1]
    return env.chat.decode([t for t, source in zip(ledger.ids, ledger.sources, strict=True) if source == Source.TOOL])


@pytest.mark.prevents("an agent loop that overrides a step of the built-in one trains on tokens rendered again")
async def test_a_child_of_the_tool_agent_keeps_its_tokens(derived):
    trajectory, env, engine = await derived("PlainChild", CALL, "The answer is 5 .")
    ledger = trajectory.ledgers[0]
    assert trained(trajectory, env) == f"{CALL}{END}The answer is 5 .{END}"
    assert "reward=1.0" in tool_text(trajectory, env)
    assert engine.prompts["0/r/0"][1] == ledger.ids[: -len(env.chat.tokenizer.encode(f"The answer is 5 .{END}"))]
    assert trajectory.tool_rewards == {"calc_gsm8k_reward": 1.0}
    assert [(call.name, call.turn) for call in trajectory.tool_calls] == [("calc_gsm8k_reward", 0)]
    assert all(logprob == -0.25 for logprob, mask in zip(ledger.logprobs, ledger.mask, strict=True) if mask)


async def test_its_tokens_are_those_of_agentrl_s_own_loop(derived):
    mine, *_ = await derived("PlainChild", CALL, "The answer is 5 .")
    own, *_ = await derived("Parent", CALL, "The answer is 5 .")
    assert (mine.ledgers[0].ids, mine.ledgers[0].mask) == (own.ledgers[0].ids, own.ledgers[0].mask)


async def test_overridden_handlers_and_class_state(derived):
    trajectory, env, _ = await derived("Caches", CALL, CALL, "never")
    assert "[calc_gsm8k_reward] " in tool_text(trajectory, env)
    assert trajectory.extra["calls"] == 2
    assert trained(trajectory, env) == f"{CALL}{END}{CALL}{END}"


@pytest.mark.parametrize(
    ("kind", "seen"), [("OlderCall", 'older: {"answer": "5"}'), ("OwnToolObjects", "reward="), ("Of05", "1.0")]
)
async def test_calls_under_every_version_s_signature(derived, kind, seen):
    trajectory, env, _ = await derived(kind, CALL, "5")
    assert seen in tool_text(trajectory, env)
    assert trained(trajectory, env) == f"{CALL}{END}5{END}"


async def test_a_run_of_its_own_over_the_handlers(derived):
    trajectory, env, _ = await derived("OwnRun", CALL)
    assert trained(trajectory, env) == f"{CALL}{END}"


async def test_a_prompt_of_its_own(derived):
    trajectory, env, _ = await derived("ThinksFirst", "5")
    assert "Think ." in env.chat.decode(trajectory.ledgers[0].ids)


async def test_a_child_of_the_single_turn(derived):
    trajectory, env, _ = await derived("OneTurn", "5")
    assert (trained(trajectory, env), trajectory.extra) == (f"5{END}", {"mine": 1})


async def test_limits_end_a_child_s_conversation(derived):
    trajectory, env, engine = await derived("PlainChild", CALL, "never", response_length=8)
    assert len(trained(trajectory, env)) > 0
    assert trajectory.ledgers[0].response_length == 8
    assert len(engine.prompts["0/r/0"]) == 1


async def test_a_child_with_a_simulated_user(derived, tmp_path):
    kind = "verl.interactions.gsm8k_interaction.Gsm8kInteraction"
    (tmp_path / "interaction.yaml").write_text(
        f"interaction:\n  - name: gsm8k\n    class_name: {kind}\n    config: {{}}\n"
    )
    users = load_interactions(str(tmp_path / "interaction.yaml"))
    trajectory, env, _ = await derived("PlainChild", "#### 4", "#### 5", interactions=users)
    assert trained(trajectory, env) == f"#### 4{END}#### 5{END}"
    assert [reward.value for reward in trajectory.turn_rewards] == [0.0, 1.0]
    assert trajectory.extra["turn_scores"] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("WrongState", InfraError, "WrongState: a handler returned None, which is no AgentState"),
        ("Partial", UserError, r"agent loop Partial\(...\): .*async_training"),
        ("NoOutput", UserError, r"agent loop NoOutput: run\(\) returned None, no AgentLoopOutput"),
    ],
)
async def test_what_cannot_be_served_is_one_line(derived, kind, error, message):
    with pytest.raises(error, match=message) as found:
        await derived(kind, "5")
    assert "\n" not in str(found.value)


def test_verl_s_own_loop_is_agentrl_s(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.yaml").write_text(
        "- name: t\n  _target_: verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop\n"
        "- name: s\n  _target_: verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop\n"
    )
    assert loop_class("t", "agent.yaml").__name__ == "ToolAgent"
    assert loop_class("s", "agent.yaml").__name__ == "SingleTurn"


def test_stop_strings_end_an_answer_after_the_token_that_completes_them():
    words = ["a", " <", "/search", ">", " b", " </search>"]
    decode = lambda ids: "".join(words[i] for i in ids)  # noqa: E731
    assert kept(["</search>"], [0, 1, 2, 3, 4, 5], decode) == 4
    assert kept(["nothing"], [0, 1, 2], decode) == 3


NEWER = """
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, ToolListWrap, register
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop


@register("grows")
class Grows(AgentLoopBase):
    async def run(self, sampling_params, **kwargs):
        messages = list(kwargs["raw_prompt"])
        assert self.enable_continuous_token and self._get_mm_processor_kwargs() == {}
        self._assert_mm_supported(False)
        ids, mask, logprobs = await self.ct_build_initial_tokens(messages), [], []
        begin = len(ids)
        for answer in ("wrong, try again", None):
            out = await self.server_manager.generate("a", prompt_ids=ids, sampling_params=sampling_params)
            merged, mask, logprobs = await self.ct_merge_assistant_token(
                ids, out.token_ids, mask, logprobs, assistant_logprobs=out.log_probs
            )
            ids = merged.token_ids
            messages = [*messages, {"role": "assistant", "content": self.tokenizer.decode(out.token_ids[:-1])}]
            if answer:
                more = [*messages, {"role": "user", "content": answer}]
                merged, mask, logprobs = await self.ct_merge_non_assistant_msg(messages, more, ids, mask, logprobs)
                ids, messages = merged.token_ids, more
        return AgentLoopOutput(
            prompt_ids=ids[:begin], response_ids=ids[begin:], response_mask=mask, response_logprobs=logprobs,
            num_turns=4, metrics={},
        )


@register("separates")
class Separates(AgentLoopBase):
    async def run(self, sampling_params, **kwargs):
        prompt = await self.apply_chat_template(list(kwargs["raw_prompt"]))
        out = await self.server_manager.generate("a", prompt_ids=prompt, sampling_params=sampling_params)
        added = self.turn_separator + await self.apply_chat_template(
            [{"role": "user", "content": "wrong, try again"}], remove_system_prompt=True
        )
        return AgentLoopOutput(
            prompt_ids=prompt, response_ids=out.token_ids + added, num_turns=2, metrics={},
            response_mask=[1] * len(out.token_ids) + [0] * len(added),
        )


@register("chooses")
class Chooses(ToolAgentLoop):
    async def _handle_pending_state(self, agent_data, sampling_params):
        agent_data._active_tools = {}
        agent_data._active_tool_schemas = []
        return await super()._handle_pending_state(agent_data, sampling_params)


class Adder:
    name = "calc_gsm8k_reward"

    async def create(self, instance_id=None, **kwargs):
        self.given = kwargs["create_kwargs"]["ground_truth"]
        return "id", None

    async def execute(self, instance_id, parameters, **kwargs):
        return f"{instance_id} {self.given} {parameters['answer']}", 0.5, {}

    async def release(self, instance_id, **kwargs):
        self.given = None


@register("brings")
class Brings(ToolAgentLoop):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tools = {"calc_gsm8k_reward": Adder()}


@register("misspells")
class Misspells(AgentLoopBase):
    async def run(self, sampling_params, **kwargs):
        return {"a": 1}["b"]


@register("meets_failures")
class MeetsFailures(AgentLoopBase):
    async def run(self, sampling_params, **kwargs):
        raise ConnectionError("reset by peer")
"""


@pytest.mark.parametrize("kind", ["Grows", "Separates"])
async def test_prompts_grow_as_agentrl_s_own_do(run, kind):
    trajectory, env, _ = await run(NEWER, "newer", says("5", "6"), yaml=f"- name: newer\n  _target_: STEM.{kind}\n")
    answer = env.chat.tokenizer.encode(f"5{END}", add_special_tokens=False)
    observed = env.chat.observation([{"role": "user", "content": "wrong, try again"}], closed=True, last=answer[-1])
    grown = [*answer, *(token for _, tokens in observed for token in tokens)]
    ledger = trajectory.ledgers[0]
    assert ledger.ids[ledger.prompt_length :][: len(grown)] == grown
    assert trained(trajectory, env) == (f"5{END}6{END}" if kind == "Grows" else f"5{END}")


async def test_a_loop_s_choice_of_tools_is_obeyed(derived):
    trajectory, env, _ = await derived("Chooses", CALL, "never", source=NEWER)
    assert trained(trajectory, env) == f"{CALL}{END}"
    assert (tool_text(trajectory, env), trajectory.tool_calls) == ("", [])
    trajectory, env, _ = await derived("Brings", CALL, "5", source=NEWER)
    assert "id 5 5" in tool_text(trajectory, env)


async def test_a_mistake_in_a_loop_stops_the_run_and_a_failure_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "newer_loops.py").write_text(NEWER)
    (tmp_path / "agent.yaml").write_text(
        "- {name: wrong, _target_: newer_loops.Misspells}\n- {name: cut_off, _target_: newer_loops.MeetsFailures}\n"
    )
    env, _ = environment(says("5"))
    overrides = ["model.path=m", "data.train_files=x"]
    object.__setattr__(env, "settings", compose(overrides, config_name="train", checks=()))

    async def attempted(name):
        trajectory = Trajectory(row(index=7), "0/r/0", 0)
        await attempt(lambda: loop_class(name, "agent.yaml")(env), trajectory, Sampling(64), 60.0)
        return trajectory

    with pytest.raises(
        UserError, match=r"agent loop Misspells: KeyError: 'b' \(.*newer_loops.py:\d+\): correct the code"
    ):
        await attempted("wrong")
    assert (await attempted("cut_off")).error == "ConnectionError: reset by peer"
