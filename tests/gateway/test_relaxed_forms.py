"""Templates that are strict about the order of roles get messages that they take."""

from agentrl.engines.engine import Sampling
from agentrl.gateway.protocols import chat
from agentrl.gateway.relaxed_forms import relaxed_forms
from agentrl.gateway.session import AgentSession
from agentrl.trajectory.trajectory import Trajectory
from tests.rollout.scripted import environment, make_chat, row, says

STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}"
    "{% endif %}{% if not loop.first and m.role == 'user' and messages[loop.index0 - 1].role == 'user' %}"
    "{{ raise_exception('roles alternate') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_only_what_is_needed_changes() -> None:
    plain = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    assert list(relaxed_forms(plain)) == [plain]
    user = {"role": "user", "content": "c"}
    (_, milder) = relaxed_forms([*plain, {"role": "system", "content": "d"}, user])
    assert milder == [plain[0], {"role": "user", "content": "b\n\nd\n\nc"}]
    (_, milder) = relaxed_forms([plain[0]], middle=True)
    assert milder == [{"role": "user", "content": "a"}]


async def test_a_strict_template_takes_a_system_message_in_the_middle() -> None:
    env, _ = environment(says("It is 4 .", "It is 5 ."), chat=make_chat(chat_template=STRICT))
    session = AgentSession(Trajectory(row(), "k", 0), env, Sampling(64, seed=1))
    said = [{"role": "user", "content": "What is 2 + 3 ?"}, {"role": "user", "content": "Tell me."}]
    for turn in range(2):
        request = chat.read({"messages": said})
        answer = await session.answer(request, session.begin(request))
        said = [*said, {"role": "assistant", "content": answer.text}, {"role": "system", "content": "Be brief."}]
        assert len(session.trajectory.ledgers) == 1, turn
    assert "<|im_start|>user\nBe brief.<|im_end|>" in env.chat.decode(session.trajectory.ledgers[0].ids)
