"""`agentrl doctor` on a small task: healthy, then with one fault at a time."""

import json
from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.config import compose
from agentrl.doctor.diagnosis import Diagnosis, diagnose
from agentrl.doctor.finding import Finding
from agentrl.tasks.models import tiny

pytestmark = pytest.mark.integration

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(str(ground_truth) in solution_str)

def broken(data_source, solution_str, ground_truth, extra_info=None):
    return {}["score"]

def blind(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0
"""

TOOL = """
from agentrl.tools import BaseTool

class Echo(BaseTool):
    async def create(self, instance_id, broken=False, **kwargs):
        if broken:
            raise RuntimeError("no service")
        return instance_id

    async def execute(self, instance_id, parameters, **kwargs):
        return parameters["text"], 0.0, {}
"""

TOOL_YAML = """
tools:
  - class_name: echo.Echo
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: echo
        description: Says it again.
        parameters: {type: object, properties: {text: {type: string}}, required: [text]}
"""


def row(i: int, **extra_info: object) -> str:
    prompt = [{"role": "user", "content": f"What is {i} and 1?"}]
    return json.dumps({"prompt": prompt, "reward_model": {"ground_truth": str(i + 1)}, "extra_info": extra_info})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("doctor")
    (home / "rows.jsonl").write_text("\n".join(row(i) for i in range(4)))
    (home / "broken_rows.jsonl").write_text(row(1, tools_kwargs={"echo": {"create_kwargs": {"broken": True}}}))
    (home / "reward.py").write_text(REWARD)
    (home / "echo.py").write_text(TOOL)
    (home / "echo.yaml").write_text(TOOL_YAML)
    shape = tiny.TinyShape(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                           num_attention_heads=2, num_key_value_heads=2)  # fmt: skip
    tiny.prepare(home / "model", [home / "rows.jsonl"], shape=shape, seed=0)
    for weights in (home / "model").glob("*.safetensors"):
        weights.unlink()  # the doctor must do without
    return home


def settings(home: Path, *more: str) -> list[str]:
    return [
        f"model.path={home / 'model'}",
        f"data.train_files={home / 'rows.jsonl'}",
        f"custom_reward_function.path={home / 'reward.py'}",
        "rollout.multi_turn.enable=true",
        f"rollout.multi_turn.tool_config_path={home / 'echo.yaml'}",
        "trainer.device=cpu",
        "rollout.name=hf",
        *more,
    ]


def found(home: Path, *more: str) -> list[tuple[str, Finding]]:
    findings: list[tuple[str, Finding]] = []
    config = compose(settings(home, *more), config_name="train", checks=())
    diagnose(config, lambda area, finding: findings.append((area, finding)))
    return findings


def troubles(findings: list[tuple[str, Finding]], level: str = "problem") -> dict[str, str]:
    return {area: f"{finding.text} → {finding.fix}" for area, finding in findings if finding.level == level}


def test_a_healthy_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *settings(home)]) == 0
    shown = capsys.readouterr().out
    for area in ("config", "rows", "template", "tools", "reward", "masks", "memory", "engine"):
        assert f"\n{area} " in f"\n{shown}", area
    assert "echo({'text': 'text'}) answered 'text'" in shown
    assert "dry run: 1 / 0, 1 / 0, 1 / 0" in shown
    assert "tokens trained" in shown
    assert "0 problems" in shown


@pytest.mark.parametrize(
    ("setting", "area", "said"),
    [
        ("rollout.n=1", "config", "set rollout.n=8"),
        ("data.max_prompt_length=4", "rows", "data.max_prompt_length="),
        ("custom_reward_function.name=broken", "reward", "KeyError"),
        ("custom_reward_function.name=nothing", "reward", "nothing"),
        ("data.train_files=BROKEN", "tools", "no service"),
        ("rollout.multi_turn.format=mistral", "template", "hermes does: set that"),
        ("rollout.max_num_seqs=1000000000", "memory", "rollout.max_num_seqs"),
        ("model.path=/no/model", "setup", "/no/model"),
    ],
)
def test_a_fault_is_found_and_named(home: Path, setting: str, area: str, said: str) -> None:
    problems = troubles(found(home, setting.replace("BROKEN", str(home / "broken_rows.jsonl"))))
    assert said in problems[area]


def test_tools_are_tried_with_the_example_of_their_config(home: Path, tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(TOOL)
    example = TOOL_YAML.replace("{type: native}", "{type: native, example: {text: Paris}}")
    (tmp_path / "echo.yaml").write_text(example)
    findings: list[tuple[str, Finding]] = []
    given = settings(home, f"rollout.multi_turn.tool_config_path={tmp_path / 'echo.yaml'}")
    diagnosis = diagnose(compose(given, config_name="train", checks=()), lambda *one: findings.append(one))
    assert any("echo({'text': 'Paris'}) answered 'Paris'" in finding.text for _, finding in findings)
    assert diagnosis.conversation is not None
    call, result = diagnosis.conversation.messages[1:3]
    assert call["tool_calls"][0]["function"]["arguments"] == {"text": "Paris"}
    assert result["content"] == "Paris"


def test_examples_in_a_prompt_are_no_turns_of_the_model(home: Path, tmp_path: Path) -> None:
    call = {"function": {"name": "echo", "arguments": {"text": "Rome"}}}
    example = [
        {"role": "user", "content": "Say Rome."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Rome"},
        {"role": "assistant", "content": "The answer is 99."},
    ]
    shown = json.loads(row(1))
    (tmp_path / "examples.jsonl").write_text(json.dumps(shown | {"prompt": [*example, *shown["prompt"]]}))
    config = compose(settings(home, f"data.train_files={tmp_path / 'examples.jsonl'}"), config_name="train", checks=())
    findings: list[tuple[str, Finding]] = []
    diagnosis = diagnose(config, lambda area, finding: findings.append((area, finding)))
    assert "template" not in troubles(findings)
    assert "99" not in " ".join(written(diagnosis))
    assert diagnosis.conversation is not None
    assert diagnosis.conversation.turns == 2


def written(diagnosis: Diagnosis) -> list[str]:
    """What the model would be trained on in the made-up conversation."""
    assert diagnosis.conversation is not None
    assert diagnosis.decode is not None
    (ledger,) = diagnosis.conversation.ledgers
    return [diagnosis.decode([token]) for token, mask in zip(ledger.ids, ledger.mask, strict=True) if mask]


def test_a_reward_that_tells_nothing_apart_is_worth_a_word(home: Path) -> None:
    assert "1 / 1" in troubles(found(home, "custom_reward_function.name=blind"), "warning")["reward"]


def test_an_engine_that_is_not_there(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_ENGINES", str(tmp_path))
    assert "agentrl engine install vllm" in troubles(found(home, "rollout.name=vllm"))["engine"]
    url = troubles(found(home, "rollout.name=vllm", "rollout.base_url=http://127.0.0.1:9"))["engine"]
    assert "does not answer" in url


AGENTS = "- name: mine\n  python: agent.run\n"


def test_what_an_agent_program_says_has_to_reach_the_model(home: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def run(prompt):\n    return prompt\n")
    (tmp_path / "agents.yaml").write_text(AGENTS)
    mine = [f"rollout.agent.agent_loop_config_path={tmp_path / 'agents.yaml'}", "rollout.agent.default_agent_loop=mine"]
    said = [finding.text for area, finding in found(home, *mine) if area == "protocols" and finding.level == "ok"]
    assert said == ["tools, results and a system message in the middle reach the model"]
    blind = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}{{ 'assistant: ' }}"
    (tmp_path / "blind.jinja").write_text(blind)
    problems = troubles(found(home, *mine, f"model.chat_template={tmp_path / 'blind.jinja'}"))
    assert "agents cannot use tools with this template" in problems["protocols"]


def test_exit_code_1_when_training_would_break(home: Path) -> None:
    assert main(["doctor", *settings(home, "custom_reward_function.name=broken"), "--no-conversation"]) == 1


def test_without_a_model_nothing_is_asked_of_anybody() -> None:
    noted: list[tuple[str, Finding]] = []
    diagnose(compose(["trainer.device=cpu"], checks=()), lambda area, finding: noted.append((area, finding)))
    said = troubles(noted)
    assert "model.path" in said["setup"]
    assert "memory" not in said
