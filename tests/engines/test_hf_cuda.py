"""The conformance suite on a GPU."""

import pytest

from tests.engines.test_hf_conformance import subject_on, test_conformance

pytestmark = pytest.mark.gpu
subject = subject_on("cuda")
__all__ = ["subject", "test_conformance"]
