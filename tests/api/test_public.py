"""`import agentrl`: its names, what they say of themselves, and that it stays light."""

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import agentrl

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs/python.md"
PUBLIC = [*agentrl.NAMES, *agentrl.MODULES]


def test_the_import_is_light_and_names_come_when_asked_for() -> None:
    code = """
        import sys, agentrl
        from agentrl.core.plugins import load_attribute
        load_attribute("agentrl.rewards.scorers", "final_number", what="a function")  # as the process of a reward does
        assert not {"torch", "transformers", "rich", "omegaconf", "numpy"} & {*sys.modules}
        agentrl.Ledger, agentrl.UserError, agentrl.Outcome, agentrl.Sampling
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", inspect.cleandoc(code)], check=True)


@pytest.mark.parametrize("name", PUBLIC)
def test_each_name_has_a_docstring_of_its_own(name: str) -> None:
    found = inspect.unwrap(getattr(agentrl, name))
    assert inspect.cleandoc(found.__doc__ or "")
    assert not (found.__doc__ or "").startswith(f"{name}(")  # what a dataclass writes for itself


def test_the_page_lists_the_names_with_their_stability() -> None:
    table = PAGE.read_text().partition("## Names")[2]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert all(line.rstrip(" |").endswith(("stable", "provisional")) for line in rows)
    assert sorted(name for line in rows for name in re.findall(r"`(\w+)`", line.split("|")[1])) == sorted(PUBLIC)


@pytest.mark.parametrize("name", agentrl.FUNCTIONS)
def test_functions_keep_their_names_beside_the_packages(name: str) -> None:
    """`agentrl.rollout` is a package, too: it is called as the function is, and imported as any package."""
    function = getattr(agentrl, name)
    assert next(iter(inspect.signature(function).parameters)) == "config"
    assert {"Args:", "Raises:", "Example:"} & {*(inspect.unwrap(function).__doc__ or "").split()}
    assert pickle.loads(pickle.dumps(function)) is function
    assert cloudpickle.loads(cloudpickle.dumps(lambda: agentrl))() is agentrl


def test_packages_that_share_a_name_are_packages() -> None:
    import agentrl.training as package
    from agentrl.rollout.episode import seed_for

    assert package.Batch is agentrl.training.Batch  # type: ignore[attr-defined]
    assert seed_for(1, "a", 0, 0) == agentrl.rollout.episode.seed_for(1, "a", 0, 0)  # type: ignore[attr-defined]


def test_a_wrong_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'rolout'"):
        _ = agentrl.rolout
    assert {"train", "Ledger", "algorithms"} <= {*dir(agentrl)}
