"""What users may add: built in, by path, registered or from a plug-in, all under one contract."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config.choices import OPEN, own_objects
from agentrl.config.schema import Actor, Config, PolicyLoss
from agentrl.core import extensions
from agentrl.core.errors import UserError
from agentrl.core.points import LR_SCHEDULES, PARSERS, POLICY_LOSSES, REGISTRIES, lr_schedule, policy_loss
from agentrl.core.registry import Registry
from tests.registries import anchor, names, scoped

pytestmark = pytest.mark.integration

BUILT_IN = [pytest.param(r, name, id=f"{r.decorator}-{name}") for r in REGISTRIES for name in names(r)]
ELSEWHERE = {
    "task": "agentrl data NAME",
    "agent_loop": "rollout.agent.default_agent_loop",
    "task_format": "extra_info.task.format",
    "row_source": "data.train_files",
    "environment_kind": "environments.yaml",
}
EACH = [pytest.param(registry, id=registry.decorator) for registry in REGISTRIES]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    with scoped(*REGISTRIES):
        yield
    extensions.load_plugins.cache_clear()


@pytest.mark.parametrize(("registry", "name"), BUILT_IN)
def test_a_built_in_one_keeps_the_contract(registry: Registry[object], name: str) -> None:
    entry = registry.built_in(name)
    assert entry.built_in
    registry.contract.check(entry.value, name)


@pytest.mark.parametrize("registry", EACH)
def test_one_of_the_users_keeps_it_too(registry: Registry[object], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def wrong():\n    pass\n")
    with pytest.raises(UserError) as caught:
        registry.get(f"{tmp_path}/own.py:wrong", "the.key")
    assert str(caught.value).startswith(f"the.key={tmp_path}/own.py:wrong")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("registry", EACH)
def test_what_is_not_there_is_one_line(registry: Registry[object]) -> None:
    for name, says in (
        ("nowhere.py:f", "nowhere.py does not exist"),
        ("nosuch", f"choose {''.join(registry.words[:1])}"),
    ):
        with pytest.raises(UserError, match=rf"^the\.key.*{says}"):
            registry.get(name, "the.key")


def test_lists_of_choices_need_no_torch() -> None:
    code = (
        "import sys\nfrom agentrl.config.derived import needs_critic\n"
        "from agentrl.config.choices import OPEN\n"
        "assert all(choice.words for choice in OPEN.values() if choice.registry.places)\n"
        "assert needs_critic('gae') and not needs_critic('grpo')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_registry_is_behind_a_key_and_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    for registry in REGISTRIES:
        keys = [key for key, choice in OPEN.items() if choice.registry is registry] or [ELSEWHERE[registry.decorator]]
        assert f"### {registry.what[0].upper()}{registry.what[1:]}\n" in page
        line = f"| [{registry.what}](#{anchor(registry)}) | {', '.join(f'`{key}`' for key in keys)} | `@agentrl."
        assert f"{line}{registry.decorator}` |" in page


def test_a_name_of_the_users() -> None:
    @lr_schedule("half")
    def half(progress: float) -> float:
        return 0.5

    assert LR_SCHEDULES.get("half", "k") is half
    assert not LR_SCHEDULES.entry("half", "k").built_in
    assert "half" in LR_SCHEDULES.words
    with pytest.raises(UserError, match="k=hafl: did you mean half"):
        LR_SCHEDULES.get("hafl", "k")


@pytest.mark.parametrize("name", ["half", "linear"])
def test_a_taken_name_is_refused_unless_it_is_the_same_definition(name: str) -> None:
    def half(progress: float) -> float:
        return 0.5

    def other(progress: float) -> float:
        return 0.25

    LR_SCHEDULES.add("half", half)
    LR_SCHEDULES.add("half", half)
    with pytest.raises(UserError, match=f"{name!r}.: a learning-rate schedule of that name is there already"):
        LR_SCHEDULES.add(name, other)
    LR_SCHEDULES.add(name, other, replace=True)
    assert LR_SCHEDULES.get(name, "k") is other
    assert LR_SCHEDULES.built_in("linear").value is not other


def test_one_that_is_registered_keeps_the_contract_before_a_run_begins() -> None:
    policy_loss("mine")(lambda logprobs: logprobs)
    config = Config(actor=Actor(policy_loss=PolicyLoss(loss_mode="mine")))
    with pytest.raises(UserError, match=r"loss_mode=mine: it takes \(logprobs\): write def name\(logprobs, old_"):
        own_objects(config)


def test_marks_are_those_that_the_registry_knows() -> None:
    with pytest.raises(UserError, match="unknown mark 'by_token'; it takes by_sequence, choose"):
        policy_loss("mine", by_token=True)(lambda logprobs, old_logprobs, advantages: logprobs)
    assert POLICY_LOSSES.mark("geo_mean", "by_sequence", "k") is True
    assert POLICY_LOSSES.mark("vanilla", "by_sequence", "k") is None


def test_what_a_path_names_keeps_its_marks(tmp_path: Path) -> None:
    (tmp_path / "marked.py").write_text(
        "from agentrl.core.points import policy_loss\n"
        "@policy_loss('of_a_path', by_sequence=True)\ndef f(logprobs, old_logprobs, advantages):\n    return logprobs\n"
    )
    assert POLICY_LOSSES.mark(f"{tmp_path}/marked.py:f", "by_sequence", "k") is True


PLUGIN = """
from agentrl.core.points import tool_parser

@tool_parser("of_a_package", stops=("<end>",))
def parse(text, tools=None):
    return None

def register():
    tool_parser("of_a_function")(parse)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an installed package that has a plug-in."""
    (tmp_path / "some_package.py").write_text(PLUGIN)
    info = tmp_path / "some_package-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-package\nVersion: 1.2\n")
    page = (Path(__file__).parents[2] / "docs/extending.md").read_text()
    group = re.findall(r"entry-points\.\"(.+?)\"", page)[0]  # as the page tells an author of a package
    (info / "entry_points.txt").write_text(f"[{group}]\na = some_package\nb = some_package:register\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "some_package", raising=False)
    extensions.load_plugins.cache_clear()
    return tmp_path


def test_an_installed_package_adds_names(package: Path) -> None:
    """A module that registers, and a function that is called."""
    assert PARSERS.mark("of_a_package", "stops", "k") == ("<end>",)
    assert PARSERS.get("of_a_function", "k") is PARSERS.get("of_a_package", "k")


def test_a_worker_process_finds_them_as_well(package: Path) -> None:
    code = "from agentrl.core.points import PARSERS; print(PARSERS.get('of_a_package', 'k').__name__)"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(package)}, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "parse\n"


def test_plug_ins_are_not_looked_for_where_a_name_is_built_in(package: Path) -> None:
    PARSERS.get("hermes", "k")
    assert "some_package" not in sys.modules


def test_a_broken_one_is_one_line_that_names_its_package(package: Path) -> None:
    (package / "some_package.py").write_text("import not_installed_anywhere\n")
    for _ in range(2):  # not only the first time
        with pytest.raises(UserError, match=r"the plug-in a \(some-package 1\.2\) does not load: ModuleNotFoundError"):
            PARSERS.get("of_a_package", "k")
