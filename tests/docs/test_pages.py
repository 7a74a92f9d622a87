"""Every page runs as it stands there, from its first command to its last. What is not run, commands.yaml lists."""

import re
from collections.abc import Callable

import pytest

from agentrl.cli.main import FIRST_STEPS
from tests.docs.pages import IN_ORDER, KINDS, PAGES, blocks, heading_ids
from tests.docs.story import TABLE, Story, shown

pytestmark = pytest.mark.integration


def marked(page: str) -> object:
    plan = TABLE.get(page) or {}
    marks = [getattr(pytest.mark, name) for name in ("slow", "engine", "agents", "docker") if plan.get(name)]
    return pytest.param(page, marks=[*marks, pytest.mark.timeout(600)], id=page)


SECTIONS = [name for name in TABLE if "#" in name]


@pytest.mark.parametrize("page", [marked(page) for page in [*PAGES, *SECTIONS] if page not in IN_ORDER])
def test_the_page_runs(page: str, story: Callable[..., Story]) -> None:
    story(page).play()


def test_the_first_steps_of_the_help_run(story: Callable[..., Story]) -> None:
    story("agentrl --help").do([command for _, command in FIRST_STEPS])


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_are(page: str) -> None:
    assert {block.kind for block in blocks(PAGES[page])} <= KINDS


def test_pages_listed_exist() -> None:
    assert set(TABLE) <= {*PAGES, *SECTIONS, "agentrl --help"}
    assert [name for name in SECTIONS if not list(shown(name))] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", PAGES[page].read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        file, _, heading = link.partition("#")
        target = PAGES[page].parent / file if file else PAGES[page]
        assert target.exists(), link
        assert not heading or heading in heading_ids(target), link
