"""Dataset classes of the user's own, called as verl calls them."""

from pathlib import Path

import pytest

from agentrl.config.schema import CustomClass, Data
from agentrl.core.errors import UserError
from agentrl.data import load_dataset

VERL_STYLE = """
import json
from torch.utils.data import Dataset

class Mine(Dataset):
    def __init__(self, data_files, tokenizer, config, processor=None):
        self.lines = [json.loads(line) for file in data_files for line in open(file)]
        self.tokenizer = tokenizer
        self.limit = config.get("max_prompt_length", 1024)
        self.key = config.prompt_key

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        question = self.lines[index]["q"]
        return {
            "raw_prompt": [{"role": "user", "content": f"{self.tokenizer} {self.limit} {self.key} {question}"}],
            "data_source": "mine",
            "reward_model": {"ground_truth": "4"},
            "extra_info": {"index": index},
            "tools_kwargs": {"bank": {"create_kwargs": {"balance": 1}}},
        }

class Single:
    def __init__(self, data_files, tokenizer, config):
        assert isinstance(data_files, str)

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return {"prompt": "hello"}

class Needy:
    def __init__(self, data_files, tokenizer, config, secret): ...

class NoLength:
    def __init__(self, data_files, tokenizer, config): ...

class Lists(Single):
    def __getitem__(self, index):
        return [1]

class NoPrompt(Single):
    def __getitem__(self, index):
        return {"question": "?"}
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(VERL_STYLE)
    (tmp_path / "rows.jsonl").write_text('{"q": "2+2"}\n{"q": "3+1"}\n')
    return file


def data(module: Path, name: str | None) -> Data:
    return Data(custom_cls=CustomClass(path=str(module), name=name), max_prompt_length=77)


def test_called_as_verl_calls_it(module: Path) -> None:
    rows = load_dataset(data(module, "Mine"), [str(module.parent / "rows.jsonl")], "TOKENIZER")
    assert len(rows) == 2
    assert rows[1].uid == "Mine:2"
    assert rows[1].prompt == [{"role": "user", "content": "TOKENIZER 77 prompt 3+1"}]
    assert rows[1].ground_truth == "4"
    assert rows[1].extra_info == {"index": 1, "tools_kwargs": {"bank": {"create_kwargs": {"balance": 1}}}}


def test_one_file_is_passed_as_one(module: Path) -> None:
    (row,) = load_dataset(data(module, "Single"), str(module.parent / "rows.jsonl"), None)
    assert row.prompt == [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, r"data.custom_cls.name is missing"),
        ("Mnie", r"data.custom_cls.name: .* has no 'Mnie': it has Mine, Single"),
        (
            "Needy",
            r"Needy cannot be called with \(data_files=, tokenizer=, config=\): missing a required argument: 'secret'",
        ),
        ("NoLength", r"NoLength needs __len__ and __getitem__"),
        ("Lists", r"Lists\[0\] is a list; it must be a mapping"),
        ("NoPrompt", r"NoPrompt\[0\] has no 'prompt'; it has question"),
    ],
)
def test_mistakes_in_one_line(module: Path, name: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(load_dataset(data(module, name), str(module.parent / "rows.jsonl"), None))


def test_a_module_that_does_not_import(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import verl_that_is_not_there\n")
    with pytest.raises(UserError, match=r"data.custom_cls.path: .*broken.py: ModuleNotFoundError"):
        load_dataset(data(tmp_path / "broken.py", "X"), "x.jsonl", None)


def test_without_a_class_agentrl_reads_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "hi", "kind": "k"}\n')
    (row,) = load_dataset(Data(prompt_key="text", reward_fn_key="kind"), str(tmp_path / "a.jsonl"), None)
    assert (row.prompt[0]["content"], row.data_source) == ("hi", "k")
