"""As `test_corpus`: folders of which one file is a link, a FIFO, huge, damaged, …"""


import pytest

from .commands import act, look
from .hostile_runs import ALIKE, HEAVY, OTHERS, make


@pytest.mark.parametrize("name", OTHERS)
def test_folder(name, world, watch):
    path = make(name, world)
    watching = watch()
    look(watching, path, name, few=name in HEAVY | ALIKE)
    act(watching, path, name)
    assert not watching.problems, "\n".join(dict.fromkeys(watching.problems))
