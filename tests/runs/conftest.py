"""Each test has a home of its own."""

import pytest


@pytest.fixture(autouse=True)
def _at_home(home):
    """No test looks at the runs and settings of who runs it."""
