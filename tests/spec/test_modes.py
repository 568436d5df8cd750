"""The modes as records: what follows from each, and that nobody else compares their names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpu_engine.common.errors import SpecError
from gpu_engine.spec import modes
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import known_keys

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "engine" / "gpu_engine", ROOT / "tui" / "gpu_panel"]
KNOW_NAMES = ("spec/modes.py", "training/strategies.py")
"""Where a mode's name may be looked at."""


@pytest.mark.parametrize(("name", "devices", "nodes", "processes", "replicas", "shape"), [
    ("single", 1, 1, 1, 1, "single"),
    ("dp", 2, 1, 1, 2, "DP×2"),
    ("ddp", 3, 1, 3, 3, "DDP×3"),
    ("multinode", 4, 2, 4, 8, "DDP×8 on 2 nodes"),
])
def test_what_follows_from_devices_and_machines(name, devices, nodes, processes, replicas, shape):
    mode = modes.get(name)
    assert mode.local_processes(devices) == processes
    assert mode.replicas(devices, nodes) == replicas
    assert mode.shape(replicas, nodes) == shape


def test_a_mode_on_one_machine_knows_no_other():
    ddp, many = modes.get("ddp"), modes.get("multinode")
    assert (ddp.nodes(3), ddp.node_rank(2), ddp.replicas(2, 3)) == (1, 0, 2)
    assert (many.nodes(3), many.node_rank(2), many.replicas(2, 3)) == (3, 2, 6)


@pytest.mark.parametrize(("name", "hidden"), [
    ("single", {"nodes", "node_rank", "master_addr", "master_port", "timeout", "find_unused",
                "backend", "launcher", "bucket_cap_mb", "static_graph", "node_devices"}),
    ("dp", {"nodes", "node_rank", "master_addr", "master_port", "timeout", "find_unused",
            "backend", "launcher", "bucket_cap_mb", "static_graph", "node_devices"}),
    ("ddp", {"nodes", "node_rank", "master_addr", "node_devices"}),
    ("multinode", set()),
])
def test_which_keys_mean_nothing_in_a_mode(name, hidden):
    assert {k for k in known_keys() if not modes.get(name).applies(k)} \
        == {f"parallel.{k}" for k in hidden}


def test_an_unknown_mode_is_refused_by_name():
    with pytest.raises(SpecError, match=r'parallel.mode = "ring": .*single, dp, ddp, multinode'):
        modes.get("ring")
    assert modes.find("ring") is None
    assert modes.find(None) is None
    with pytest.raises(SpecError, match="expected one of single, dp, ddp, multinode"):
        from_dict({"parallel": {"mode": "ring"}})


@pytest.mark.parametrize(("chosen", "on_one", "on_two", "with_two"), [
    ("single", "single", "multinode", "ddp"), ("dp", "dp", None, "dp"),
    ("ddp", "ddp", "multinode", "ddp"), ("multinode", "ddp", "multinode", "multinode")])
def test_hosts_and_devices_of_which_there_are_several_make_another_mode(
        chosen, on_one, on_two, with_two):
    assert modes.over_hosts(1, chosen) == on_one
    assert modes.over_hosts(0, chosen) == modes.over_devices(1, chosen) == chosen
    assert modes.over_devices(2, chosen) == with_two
    if on_two:
        assert modes.over_hosts(2, chosen) == on_two
    else:
        with pytest.raises(SpecError) as caught:
            modes.over_hosts(2, chosen)
        assert str(caught.value) == ('parallel.mode = "dp": DataParallel stays on one machine; '
                                     "over 2 hosts take multinode")


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="'ddp'"):
        modes.register(modes.get("ddp"))


def compared_names(file: Path) -> list[str]:
    """Where a mode's name is compared with, or matched, or looked up in a table: file:line."""
    names = set(modes.names())
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            parts = [k for k in node.keys if k is not None]
        else:
            continue
        if any(isinstance(c, ast.Constant) and c.value in names
               for part in parts for c in ast.walk(part)):
            found.append(f"{file}:{node.lineno}")
    return found


def test_nothing_but_records_and_strategies_compares_the_names_of_modes(tmp_path):
    asks = tmp_path / "asks.py"
    asks.write_text('def f(mode):\n    if mode in ("ddp", "x"):\n        return {"dp": 1}[mode]\n'
                    '    match mode:\n        case "single":\n            return 2\n')
    assert len(compared_names(asks)) == 3  # the test itself sees what it looks for
    files = [(file, str(file.relative_to(root))) for root in SOURCES for file in root.rglob("*.py")]
    assert len(files) > 150
    assert not [where for file, name in files if not name.startswith(KNOW_NAMES)
                for where in compared_names(file)]
