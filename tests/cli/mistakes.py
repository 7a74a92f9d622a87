"""Mistakes that newcomers make, as they would type them, and what the line that answers must say.

A mistake is a command in a folder of its own, with `files` on top of those in FILES, which are fine. The line names the
culprit and the fix. `benchmarks/mistakes.py` prints a table of them all, with seconds.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Content = str | bytes


@dataclass(frozen=True)
class Mistake:
    """One kind."""

    kind: str
    command: str
    """Without `agentrl`; TRAIN and others stand for settings that are fine."""
    culprit: str
    """In the line."""
    fix: str
    files: Mapping[str, Content] = field(default_factory=dict)
    code: int = 2
    before: Callable[[Path], None] = lambda folder: None
    """What else happened in the folder."""
    slow: bool = False
    """Loads PyTorch."""


def jsonl(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def row(**changes: object) -> dict[str, object]:
    row = {"prompt": [{"role": "user", "content": "What is 2 + 3?"}], "reward_model": {"ground_truth": "5"}}
    return row | changes


TOOL = """\
from agentrl.tools import BaseTool


class Search(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        return "found " + parameters["query"]
"""
TOOL_YAML = """\
tools:
  - class_name: search_tool.Search
    config: {timeout: 5}
    tool_schema:
      type: function
      function:
        name: search
        description: Search.
        parameters:
          type: object
          properties: {query: {type: string}}
          required: [query]
"""
USER = """\
from agentrl.interactions import BaseInteraction


class AskAgain(BaseInteraction):
    async def generate_response(self, instance_id, messages, **kwargs):
        return True, "", 1.0, {}
"""
USER_YAML = "interaction:\n  - {name: again, class_name: user.AskAgain}\n"
LOOP = """\
from agentrl.rollout.loops import AgentLoop


class Mine(AgentLoop):
    async def run(self, trajectory, sampling):
        trajectory.reward = 1.0
"""
REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}

FILES: dict[str, Content] = {
    "rows.jsonl": jsonl(*[row()] * 8),
    "reward.py": REWARD,
    "search_tool.py": TOOL,
    "tools.yaml": TOOL_YAML,
    "user.py": USER,
    "user.yaml": USER_YAML,
    "loop.py": LOOP,
    "loops.yaml": "- {name: mine, _target_: loop.Mine}\n",
    "model/config.json": json.dumps(CONFIG),
    "model/model.safetensors": b"\0",
    "model/tokenizer.json": "{}",
    "model/tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"}),
    "answers.jsonl": jsonl({"prompt": "2+3?", "data_source": "x", "responses": ["5"], "reward_model": {}}),
}

DATA = "data.train_files=rows.jsonl data.train_batch_size=8 actor.ppo_mini_batch_size=8"
SCORE = "reward.custom_reward_function.path=reward.py"
MODEL = "model.path=model"
TRAIN = f"train {MODEL} {DATA} {SCORE}"
TOOLS = f"{TRAIN} rollout.multi_turn.enable=true rollout.multi_turn.tool_config_path=tools.yaml"
USERS = f"{TRAIN} rollout.multi_turn.enable=true rollout.multi_turn.interaction_config_path=user.yaml"
LOOPS = f"{TRAIN} rollout.agent.agent_loop_config_path=loops.yaml rollout.agent.default_agent_loop=mine"


def tool(body: str, *, signature: str = "self, instance_id, parameters, **kwargs") -> dict[str, Content]:
    return {"search_tool.py": TOOL.partition("    async")[0] + f"    async def execute({signature}):\n        {body}\n"}


def yaml(old: str, new: str) -> dict[str, Content]:
    assert old in TOOL_YAML
    return {"tools.yaml": TOOL_YAML.replace(old, new)}


def rows(*records: object) -> dict[str, Content]:
    return {"rows.jsonl": jsonl(*records)}


def lose(*names: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return remove


def block(name: str) -> Callable[[Path], None]:
    """A file where a folder should be."""
    return lambda folder: (folder / name).write_text("")  # type: ignore[return-value]


COMMAND_LINE = [
    Mistake("unknown command", "trian model.path=model", "trian: no such command", "did you mean train?"),
    Mistake("no rows", "rollout model.path=model --rows -1", "--rows", "write 1 or more"),
    Mistake("unknown key", f"{TRAIN} rollout.temprature=1", "rollout.temprature", "did you mean rollout.temperature?"),
    Mistake("unknown option", f"{TRAIN} --confg-name x", "--confg-name", "`agentrl train --help`"),
    Mistake("misspelt value", f"{TRAIN} algorithm.adv_estimator=grop", "adv_estimator=grop", "grpo"),
    Mistake("misspelt preset", f"{TRAIN} algorithm=grop", "algorithm=grop", "dr_grpo, grpo"),
    Mistake("missing =", f"{TRAIN} rollout.n", "rollout.n", "key=value"),
    Mistake("spaces around =", f"{TRAIN} rollout.n = 4", "rollout.n", "without spaces"),
    Mistake("a space after =", f"{TRAIN} rollout.n= 4", "4", "without spaces"),
    Mistake("dashes before a key", f"{TRAIN} --rollout.n=4", "--rollout.n=4", "rollout.n=4"),
    Mistake("wrong type", f"{TRAIN} rollout.n=many", "rollout.n=many", "must be int"),
    Mistake("a section as a value", f"{TRAIN} rollout.multi_turn=true", "rollout.multi_turn=true", "enable"),
    Mistake("a file of settings that is not there", f"{TRAIN} --config-name mine", "mine", "--config-dir"),
    Mistake(
        "broken YAML of settings",
        f"{TRAIN} --config-dir . --config-name own",
        "own.yaml is not YAML",
        "line",
        {"own.yaml": "defaults: [train, _self_]\nrollout: {n: 4\n"},
    ),
    Mistake("nothing set", "train", "not set: model.path", "`agentrl model smollm2`"),
]
MODELS = [
    Mistake("model folder missing", TRAIN.replace("=model", "=./mdoel"), "model.path: ./mdoel", "`agentrl model"),
    Mistake("model path is a file", TRAIN.replace("=model ", "=model/config.json "), "config.json is a file", "folder"),
    Mistake(
        "not a model's folder",
        TRAIN.replace("=model ", "=other "),
        "has no config.json",
        "Hugging Face format",
        {"other/readme.txt": ""},
    ),
    Mistake("no weights", TRAIN, "has no weights", "download", before=lose("model/model.safetensors")),
    Mistake(
        "no tokenizer",
        TRAIN,
        "has no tokenizer",
        "model.tokenizer_path",
        before=lose("model/tokenizer.json", "model/tokenizer_config.json"),
    ),
    Mistake(
        "no chat template (a base model)",
        TRAIN,
        "has no chat template",
        "model.chat_template",
        {"model/tokenizer_config.json": "{}"},
    ),
    Mistake(
        "hub id without a network", TRAIN.replace("=model ", "=org/none "), "org/none", "HF_HUB_OFFLINE", slow=True
    ),
    Mistake("chat template missing", f"{TRAIN} model.chat_template=no.jinja", "no.jinja", "does not exist"),
]
DATA_FILES = [
    Mistake("rows missing", TRAIN.replace("rows.jsonl", "row.jsonl"), "row.jsonl does not exist", "`agentrl data"),
    Mistake("empty file", TRAIN, "rows.jsonl has no rows", "write", {"rows.jsonl": ""}),
    Mistake("wrong ending", TRAIN.replace("rows.jsonl", "rows.txt"), "rows.txt", ".jsonl", {"rows.txt": "a"}),
    Mistake("a folder for a file", TRAIN.replace("rows.jsonl", "model"), "is a folder", "name the files"),
    Mistake(
        "broken JSON in line 17",
        TRAIN,
        "rows.jsonl:17 is not JSON",
        "correct that line",
        {"rows.jsonl": jsonl(*[row()] * 16) + '{"prompt": \n'},
    ),
    Mistake("JSON that is no object", TRAIN, "rows.jsonl:1 is not a JSON object", "{", {"rows.jsonl": "[1]\n"}),
    Mistake(
        "Latin-1",
        TRAIN,
        "rows.jsonl:2 is not UTF-8",
        "iconv -f latin1",
        {"rows.jsonl": '{"prompt": "a"}\n{"prompt": "é"}\n'.encode("latin1")},
    ),
    Mistake(
        "UTF-16",
        TRAIN,
        "rows.jsonl is not UTF-8",
        "iconv -f utf-16",
        {"rows.jsonl": '{"prompt": "a"}'.encode("utf-16")},
    ),
    Mistake(
        "parquet by name only",
        TRAIN.replace("rows.jsonl", "r.parquet"),
        "r.parquet is not a parquet file",
        "name it",
        {"r.parquet": "x"},
    ),
    Mistake("no prompt column", TRAIN, "no column 'prompt'", "it has qestion", rows({"qestion": "a"})),
    Mistake(
        "prompt of a wrong type", TRAIN, "rows.jsonl:1: prompt", "neither messages nor a string", rows(row(prompt=5))
    ),
    Mistake("empty prompt", TRAIN, "rows.jsonl:2: prompt is empty", "remove the row", rows(row(), row(prompt=""))),
    Mistake("no messages", TRAIN, "rows.jsonl:1: prompt is empty", "remove the row", rows(row(prompt=[]))),
    Mistake(
        "messages without content",
        TRAIN,
        "rows.jsonl:1: prompt is empty",
        "write the question",
        rows(row(prompt=[{"role": "user", "content": ""}])),
    ),
    Mistake("messages without a role", TRAIN, "no message with a role", "role", rows(row(prompt=[{"text": "a"}]))),
    Mistake(
        "ShareGPT's layout",
        TRAIN,
        "no message with a role",
        '"role": "user"',
        rows(row(prompt=[{"from": "human", "value": "a"}])),
    ),
    Mistake(
        "ShareGPT's roles",
        TRAIN,
        "the role 'human'",
        "write 'user'",
        rows(row(prompt=[{"role": "human", "content": "a"}])),
    ),
    Mistake("fewer rows than a batch", TRAIN, "data.train_batch_size=8", "the 1 row there is", rows(row())),
    Mistake(
        "extra_info of a wrong type", TRAIN, "rows.jsonl:1: extra_info", "object", rows(*[row(extra_info="{a")] * 8)
    ),
    Mistake(
        "CSV with a cell too many",
        TRAIN.replace("rows.jsonl", "rows.csv"),
        "rows.csv:2 has 3 cells, and the header 2",
        "double quotes",
        {"rows.csv": "prompt,ground_truth\nadd 2, please,5\n"},
    ),
    Mistake(
        "rows name an unknown agent loop",
        TRAIN,
        "agent loop 'tool_agnt'",
        "tool_agent",
        rows(*[row(agent_name="tool_agnt")] * 8),
    ),
]
TOOLS_OF_ONES_OWN = [
    Mistake("tool YAML missing", TOOLS.replace("tools.yaml", "tool.yaml"), "tool.yaml does not exist", "looked in"),
    Mistake("broken tool YAML", TOOLS, "tools.yaml", "line", {"tools.yaml": "tools: [\n"}),
    Mistake("no list of tools", TOOLS, "no list 'tools'", "write `tools:`", {"tools.yaml": "tool:\n  - {}\n"}),
    Mistake("tool file missing", TOOLS, "found neither search.py", "beside the YAML", yaml("search_tool", "search")),
    Mistake("tool class missing", TOOLS, "no class 'Serch'", "correct class_name", yaml("Search\n", "Serch\n")),
    Mistake(
        "a tool imports what is not installed",
        TOOLS,
        "No module named 'requestz'",
        "install",
        {"search_tool.py": "import requestz\n" + TOOL},
    ),
    Mistake("syntax error in a tool", TOOLS, "SyntaxError", "line 6", {"search_tool.py": TOOL.replace('"]', '"')}),
    Mistake(
        "tool without execute",
        TOOLS,
        "has no execute()",
        "async def execute",
        ({"search_tool.py": TOOL.partition("    async")[0] + "    pass\n"}),
    ),
    Mistake(
        "execute with other parameters",
        TOOLS,
        "execute(query)",
        "async def execute",
        tool("return query", signature="self, query"),
    ),
    Mistake("required not in properties", TOOLS, "required names 'q'", "describe it there", yaml("[query]", "[q]")),
    Mistake("misspelt key in config", TOOLS, "config.timeoutt", "did you mean timeout?", yaml("timeout:", "timeoutt:")),
    Mistake(
        "misspelt key in an entry", TOOLS, "unknown key 'confg'", "did you mean config?", yaml("config:", "confg:")
    ),
    Mistake(
        "wrong value in config", TOOLS, "config.timeout is 'soon'", "write seconds", yaml("timeout: 5", "timeout: soon")
    ),
    Mistake("a tool that returns None", TOOLS, "Search.execute never returns", "return text", tool('print("found")')),
    Mistake(
        "no schema",
        TOOLS,
        "has no schema",
        "write tool_schema",
        {"tools.yaml": TOOL_YAML.partition("    tool_schema")[0]},
    ),
    Mistake(
        "a Python type in the schema",
        TOOLS,
        "properties.query.type is 'str'",
        "write string",
        yaml("type: string", "type: str"),
    ),
    Mistake(
        "two tools of one name",
        TOOLS,
        "a tool named 'search'",
        "rename one",
        {"tools.yaml": TOOL_YAML + TOOL_YAML.removeprefix("tools:\n")},
    ),
    Mistake(
        "a tool that raises",
        "tools test tools.yaml",
        "ValueError: no key",
        "search",
        tool('raise ValueError("no key")'),
        code=1,
    ),
    Mistake(
        "a tool that blocks",
        "tools test tools.yaml",
        "Search.execute blocks the event loop at search_tool.py:7",
        "config.in_thread: true",
        tool('import time\n        time.sleep(0.8)\n        return "found"'),
        code=1,
    ),
    Mistake(
        "arguments that are no JSON", "tools test tools.yaml --call search={query:1}", "--call search", "write NAME="
    ),
]
USERS_AND_LOOPS = [
    Mistake(
        "interaction class missing",
        USERS,
        "no class 'AskAgan'",
        "correct class_name",
        {"user.yaml": USER_YAML.replace("AskAgain", "AskAgan")},
    ),
    Mistake(
        "interaction without generate_response",
        USERS,
        "has no generate_response()",
        "async def generate_response",
        {"user.py": USER.partition("    async")[0] + "    pass\n"},
    ),
    Mistake(
        "misspelt key of an interaction",
        USERS,
        "unknown key 'clas_name'",
        "class_name",
        {"user.yaml": USER_YAML.replace("}", ", clas_name: x}")},
    ),
    Mistake(
        "agent loop YAML without _target_",
        LOOPS,
        "entry 0 has no _target_",
        "name and _target_",
        {"loops.yaml": "- {name: mine}\n"},
    ),
    Mistake(
        "agent loop without run",
        LOOPS,
        "it has no run()",
        "async def run",
        {"loop.py": LOOP.partition("    async")[0] + "    pass\n"},
    ),
    Mistake(
        "unknown agent loop",
        f"{TRAIN} rollout.agent.default_agent_loop=tool_agnt",
        "agent loop 'tool_agnt'",
        "tool_agent",
    ),
]
REWARDS = [
    Mistake(
        "nothing scores", TRAIN.replace(SCORE, ""), "nothing scores the answers", "reward.custom_reward_function.path"
    ),
    Mistake("reward file missing", TRAIN.replace("reward.py", "rewrd.py"), "rewrd.py does not exist", "looked in"),
    Mistake(
        "reward function missing",
        TRAIN,
        "no 'compute_score'",
        "it has score",
        {"reward.py": REWARD.replace("compute_score", "score")},
    ),
    Mistake(
        "reward function with other parameters",
        TRAIN,
        "compute_score(answer) does not fit",
        "make it compute_score(data_source, solution_str, ground_truth",
        {"reward.py": "def compute_score(answer):\n    return 1.0\n"},
    ),
    Mistake(
        "reward function that returns nothing",
        TRAIN,
        "compute_score never returns",
        "a number",
        {"reward.py": REWARD.replace("return", "float(")[:-1] + ")\n"},
    ),
    Mistake(
        "reward function that returns text",
        f"eval data.path=answers.jsonl {SCORE}",
        "returned 'good'",
        "not a finite number",
        {"reward.py": REWARD.replace("1.0", "'good'")},
        code=1,
        slow=True,
    ),
]
ALGORITHM = [
    Mistake("GRPO with one answer", f"{TRAIN} rollout.n=1", "rollout.n=1", "set rollout.n=8"),
    Mistake(
        "both KLs",
        f"{TRAIN} actor.use_kl_loss=true algorithm.use_kl_in_reward=true",
        "actor.use_kl_loss",
        "set one to false",
    ),
    Mistake(
        "mini-batch over the batch", f"{TRAIN} actor.ppo_mini_batch_size=16", "ppo_mini_batch_size=16", "set it to 8"
    ),
    Mistake(
        "no multiple of the mini-batch",
        f"{TRAIN} actor.ppo_mini_batch_size=3",
        "ppo_mini_batch_size=3",
        "set the latter to",
    ),
    Mistake(
        "GAE without a critic",
        f"{TRAIN} algorithm.adv_estimator=gae critic.enable=false",
        "critic.enable=false",
        "remove critic.enable",
    ),
    Mistake("temperature 0", f"{TRAIN} rollout.temperature=0", "rollout.temperature=0", "rollout.do_sample=false"),
]
ENGINE_AND_TRAINER = [
    Mistake("no GPU", f"{TRAIN} trainer.device=cuda", "trainer.device=cuda", "trainer.device=auto", slow=True),
    Mistake("unknown engine", f"{TRAIN} rollout.name=tgi", "rollout.name=tgi", "hf"),
    Mistake(
        "run folder below a file",
        f"{TRAIN} trainer.default_local_dir=runs/mine",
        "trainer.default_local_dir: runs/mine",
        "name a writable folder",
        before=block("runs"),
    ),
    Mistake(
        "no checkpoint to resume from",
        f"{TRAIN} trainer.resume_mode=resume_path trainer.resume_from_path=no/global_step_4",
        "trainer.resume_from_path",
        "does not exist",
    ),
    Mistake(
        "resume path without its mode",
        f"{TRAIN} trainer.resume_from_path=.",
        "trainer.resume_from_path",
        "trainer.resume_mode=resume_path",
    ),
]
OTHER_COMMANDS = [
    Mistake("sft without rows", f"sft {MODEL}", "data.train_files", "set"),
    Mistake("sft, rows missing", f"sft {MODEL} data.train_files=no.jsonl", "no.jsonl does not exist", "looked in"),
    Mistake(
        "sft into a file",
        f"sft {MODEL} data.train_files=rows.jsonl trainer.output_dir=reward.py",
        "reward.py cannot be written",
        "name a writable folder",
    ),
    Mistake("eval without answers", f"eval {SCORE}", "data.path is not set", "stored answers"),
    Mistake(
        "eval of rows without answers",
        f"eval data.path=rows.jsonl {SCORE}",
        "holds no answers",
        "set data.response_key",
        slow=True,
    ),
    Mistake(
        "generate without a place",
        f"generate {MODEL} data.path=rows.jsonl",
        "data.output_path is not set",
        ".parquet or .jsonl",
    ),
    Mistake(
        "generate into a folder",
        f"generate {MODEL} data.path=rows.jsonl data.output_path=other",
        "other is a folder",
        "name a file",
        {"other/readme.txt": ""},
    ),
    Mistake("merge without a checkpoint", "merge runs/none out", "runs/none", "checkpoint", slow=True),
    Mistake("view of nothing", "view runs/none", "runs/none", "run"),
    Mistake("sandbox, file missing", "sandbox run no.py", "no.py cannot be read", "No such file"),
    Mistake("sandbox, unknown language", "sandbox run rows.jsonl", "the language is unknown", "--language"),
    Mistake("data of an unknown task", "data arithmetics --out d", "arithmetics", "arithmetic"),
    Mistake(
        "rollout of rows that are not there",
        f"rollout {MODEL} data.train_files=no.jsonl",
        "no.jsonl does not exist",
        "`agentrl data",
    ),
    Mistake("model into a folder of something else", "model smollm2 model", "model exists", "choose another folder"),
]
MISTAKES = [
    *COMMAND_LINE,
    *MODELS,
    *DATA_FILES,
    *TOOLS_OF_ONES_OWN,
    *USERS_AND_LOOPS,
    *REWARDS,
    *ALGORITHM,
    *ENGINE_AND_TRAINER,
    *OTHER_COMMANDS,
]


def prepare(mistake: Mistake, folder: Path) -> list[str]:
    """Write its files; returns the command's arguments."""
    for name, content in {**FILES, **mistake.files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    mistake.before(folder)
    return mistake.command.split()


def complaints(mistake: Mistake, code: int, out: str, err: str) -> list[str]:
    """What is wrong with the answer to a mistake."""
    said = (
        " ".join((out + err).split()) if mistake.command.startswith(("tools test", "eval")) else " ".join(err.split())
    )
    wrong = [f"exit code {code}, not {mistake.code}"] if code != mistake.code else []
    wrong += [f"a traceback: {err[-600:]}"] if "Traceback (most" in err and mistake.code == 2 else []
    wrong += [f"{words!r} is not in: {said}" for words in (mistake.culprit, mistake.fix) if words not in said]
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    wrong += [f"{len(lines)} lines of error: {err}"] if mistake.code == 2 and len(lines) != 1 else []
    return wrong
