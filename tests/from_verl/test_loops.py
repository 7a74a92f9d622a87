"""Agent loops as people wrote them for verl, run unchanged: what they are given, and what is trained on of it."""

from pathlib import Path

import pytest

from agentrl.chat.ledger import Source
from agentrl.config import compose
from agentrl.errors import InfraError, UserError
from agentrl.rollout.engine import Sampling
from agentrl.rollout.loops import loop_class
from agentrl.rollout.trajectory import Trajectory
from agentrl.verl.server import kept
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
        wishes = {**sampling_params, "repetition_penalty": 1.2}
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

    async def run(source, name, script, *, yaml=None, more=None, **limits):
        stem = f"loops_{abs(hash((source, str(tmp_path))))}"
        (tmp_path / f"{stem}.py").write_text(source)
        (tmp_path / "agent.yaml").write_text((yaml or f"- name: {name}\n  _target_: STEM.KIND\n").replace("STEM", stem))
        env, engine = environment(script, **limits)
        object.__setattr__(env, "settings", more or settings)
        subject = row(index=7)
        subject.others["problem_id"] = "p7"
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
    assert "has the reward 1.0" in seen
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
    with pytest.raises(UserError, match=r"repetition_penalty=1\.2"):
        await run(PENALTY, "penalty", says("5"), yaml=yaml)


async def test_masks_of_another_length_are_an_error(run):
    source = V05.replace("[1] * len(ids)", "[1]").replace("old_kind", "short_mask")
    with pytest.raises(InfraError, match="1 mask entries"):
        await run(source, "short_mask", says("5"), yaml="- name: short_mask\n  _target_: STEM.Old\n")


def test_a_registered_name_needs_no_yaml(tmp_path):
    from agentrl.plugins import load_user_file

    (tmp_path / "named.py").write_text(V05.replace("old_kind", "by_name_alone"))
    load_user_file(tmp_path / "named.py", where="test")
    assert loop_class("by_name_alone").kind.__name__ == "Old"


def test_what_derives_from_verl_s_own_loops_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    importing = "from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop"
    (tmp_path / "deriving.py").write_text(f"{importing}\n\n\nclass Mine(ToolAgentLoop):\n    pass\n")
    with pytest.raises(UserError, match="derive it from AgentLoopBase"):
        loop_class("deriving.Mine")
    (tmp_path / "agent.yaml").write_text(
        "- name: t\n  _target_: verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop\n"
    )
    assert loop_class("t", "agent.yaml").__name__ == "ToolAgentLoop"


def test_stop_strings_end_an_answer_after_the_token_that_completes_them():
    words = ["a", " <", "/search", ">", " b", " </search>"]
    decode = lambda ids: "".join(words[i] for i in ids)  # noqa: E731
    assert kept(["</search>"], [0, 1, 2, 3, 4, 5], decode) == 4
    assert kept(["nothing"], [0, 1, 2], decode) == 3
