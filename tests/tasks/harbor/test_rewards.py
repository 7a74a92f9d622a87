"""The reward that tests leave, in the format's order."""

from pathlib import Path

import pytest

from agentrl.core.errors import InfraError
from agentrl.tasks.harbor.rewards import read_numbers, verdict_on


@pytest.mark.parametrize(
    ("files", "code", "reward", "scores"),
    [
        ({"reward.txt": " 0.25\n"}, 0, 0.25, {}),
        ({"reward.txt": "1"}, 5, 1, {}),
        (
            {"reward.json": '{"reward": 0.5, "style": 1, "why": "words"}', "reward.txt": "1"},
            0,
            0.5,
            ("reward", "style"),
        ),
        ({"reward.json": '{"a": 1, "b": 0}'}, 0, 0.5, ("a", "b")),
        ({"reward.json": '{"speed": true}'}, 0, 1, ()),
        ({"reward.json": "0.75"}, 0, 0.75, ()),
    ],
)
def test_the_first_file_counts(
    files: dict[str, str], code: int, reward: float, scores: tuple[str, ...], tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    verdict = verdict_on(read_numbers(tmp_path, code, "words"), "words")
    assert verdict.reward == reward
    assert tuple(verdict.scores) == tuple(scores)
    assert verdict.output.startswith("words")


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({}, "ended with exit code 3 and wrote neither reward.txt nor reward.json to /logs/verifier: no pytest"),
        ({"reward.json": "[" * 2**20}, "has more than 1024 KiB|is no JSON"),
        ({"reward.json": "[" * 2**19}, "is no JSON"),
        ({"reward.json": "1" + "0" * 400}, "holds no finite numbers"),
        ({"reward.txt": " " * 2**21}, "has more than 1024 KiB"),
        ({"reward.txt": ""}, "reward.txt of the tests holds '' and no number"),
        ({"reward.txt": "nan"}, "holds no finite numbers: nan"),
        ({"reward.json": "{"}, "reward.json of the tests is no JSON"),
        ({"reward.json": '{"reward": NaN}'}, "holds no finite numbers"),
        ({"reward.json": "{}"}, "holds no finite numbers"),
    ],
)
def test_a_broken_verifier_is_no_score(files: dict[str, str], line: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InfraError, match=line):
        read_numbers(tmp_path, 3, "no pytest")
    if not files:
        with pytest.raises(InfraError, match="ended well and wrote neither"):
            read_numbers(tmp_path, 0, "")
