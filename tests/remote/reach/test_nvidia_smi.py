"""nvidia-smi's table as devices: what it prints on real machines, and what it must never break."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.remote.reach import nvidia_smi
from gpu_engine.remote.reach.nvidia_smi import NotSeen, query, read
from gpu_engine.remote.reach.records import Host

TABLE = """\
0, GPU-11111111-aaaa-bbbb-cccc-000000000000, NVIDIA A100-SXM4-80GB, 74, 34012, 81920, 61, 301.12
1, GPU-22222222-aaaa-bbbb-cccc-000000000000, NVIDIA GeForce RTX 3090, [N/A], 0, 24576, 33, [N/A]
"""


def here(tmp_path: Path, body: str | None) -> Host:
    """A host whose only nvidia-smi is a few lines of shell, or which has none."""
    tools = tmp_path / "bin"
    tools.mkdir()
    if body is not None:
        (tools / "nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
        (tools / "nvidia-smi").chmod(0o755)
    return Host("box", via=("env", f"PATH={tools}:/usr/bin:/bin"))


def test_a_table_of_two():
    inventory, snapshot = read(TABLE, 5.0)
    first, second = snapshot.samples
    assert [(d.id, d.index, d.uuid) for d in inventory.devices] == [
        ("0", 0, "GPU-11111111-aaaa-bbbb-cccc-000000000000"),
        ("1", 1, "GPU-22222222-aaaa-bbbb-cccc-000000000000")]
    assert (first.utilization, first.memory_used, first.memory_total) == (
        0.74, 34012 << 20, 81920 << 20)
    assert (first.temperature, first.power) == (61.0, 301.12)
    assert second.device.name == "NVIDIA GeForce RTX 3090"
    assert (second.utilization, second.power) == (None, None)
    assert second.memory_used == 0
    assert first.processes is None, "users unknown"


def test_asked_over_a_shell_that_prints_first(tmp_path):
    host = here(tmp_path, f'echo "$*" > "{tmp_path}/asked"; printf "%s" "{TABLE}"')
    noisy = Host("box", via=("sh", "-c", 'echo "0, GPU-9, x, 1, 1, 1, 1, 1"; exec "$@"',
                             "login", *host.via))
    assert len(query(noisy)[0].devices) == 2
    assert (tmp_path / "asked").read_text() == \
        f"--query-gpu={','.join(nvidia_smi.FIELDS)} --format=csv,noheader,nounits\n"


@pytest.mark.parametrize(("body", "says"), [
    ("echo NVIDIA-SMI has failed because it could not talk to the driver; exit 9", "has failed"),
    ("echo 'No devices were found'; exit 6", "No devices were found"),
    ("printf 'bad \\033[2J thing\\n' >&2; exit 3", "bad  thing"),
    ("echo nonsense", "nonsense"),
])
def test_what_it_says_when_it_fails(tmp_path, body, says):
    with pytest.raises(NotSeen) as err:
        query(here(tmp_path, body))
    assert says in str(err.value)
    assert str(err.value).isprintable()


def test_none_there(tmp_path):
    with pytest.raises(NotSeen, match="there is no nvidia-smi"):
        query(here(tmp_path, None))


def test_one_that_prints_without_end_or_never_ends_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(nvidia_smi, "_SECONDS", 3.0)
    with pytest.raises(NotSeen):
        query(here(tmp_path, "yes '0, GPU-1, a, 1, 1, 1, 1, 1'"))
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 600\n")
    with pytest.raises(NotSeen):
        query(Host("box", via=("env", f"PATH={tmp_path}/bin:/usr/bin:/bin")))


@given(st.one_of(st.text(max_size=400), st.lists(
    st.lists(st.text("0,1 9[N/A]-.e\x1b\"\n", max_size=8), min_size=8, max_size=8).map(
        ", ".join), max_size=4).map("\n".join)))
def test_any_text_is_read_or_refused(text):
    samples, said = (), ""
    try:
        samples = read(text, 1.0)[1].samples
    except NotSeen as err:
        said = str(err)
    said += "".join(s.device.name for s in samples)
    assert not [c for c in said if ord(c) < 32 or 126 < ord(c) < 160]
    for sample in samples:
        assert sample.memory_used is None or sample.memory_used >= 0
        assert sample.utilization is None or sample.utilization >= 0
    ids = [s.device.id for s in samples]
    assert len(set(ids)) == len(ids)
