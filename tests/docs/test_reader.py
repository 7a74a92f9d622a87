"""The pages that a new user reads, in their order and in one folder, each in the state that the earlier ones left."""

from collections.abc import Callable

import pytest

from tests.docs.story import Story

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PAGES = ("README.md", "getting-started.md", "python.md", "evaluation.md", "extending.md")


def test_the_pages_run_one_after_the_other(story: Callable[..., Story]) -> None:
    for page in PAGES:
        story(page, follows=True).play()
