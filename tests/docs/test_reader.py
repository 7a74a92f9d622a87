"""The pages that a new user reads, in their order and in one folder, each in the state that the earlier ones left."""

from collections.abc import Callable

import pytest

from tests.docs.pages import IN_ORDER
from tests.docs.story import Story

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_the_pages_run_one_after_the_other(story: Callable[..., Story]) -> None:
    for page in IN_ORDER:
        story(page, follows=True).play()
