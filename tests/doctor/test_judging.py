"""Facts in, findings out: each trouble is named with its value and what to type."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from gpu_engine.devices.records import TOO_HOT, Device, DeviceProcess, Inventory, Sample
from gpu_engine.doctor import devices, folders, software, surroundings, user_files
from gpu_engine.doctor.records import Finding
from gpu_engine.interpreters.build import Build

GIB = 1 << 30
GPU = Device("0", "gpu", "NVIDIA A100", 0, "GPU-0", 80 * GIB)


def level_of(found: list[Finding], *words: str) -> list[str]:
    """The levels of the findings that have all these words, in text or cure."""
    return [f.level for f in found if all(w in f"{f.text} → {f.cure}" for w in words)]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=3),
       st.lists(st.tuples(st.sampled_from([">=", "<=", "==", "!=", "<", ">"]),
                          st.lists(st.integers(0, 30), min_size=1, max_size=3)), max_size=3))
def test_ranges_of_versions_are_those_of_packaging(numbers, conditions):
    version = ".".join(map(str, numbers))
    wanted = ",".join(op + ".".join(map(str, n)) for op, n in conditions)
    assert software.in_range(version, wanted) == SpecifierSet(wanted).contains(Version(version))


def test_what_follows_the_numbers_of_a_version_counts_for_nothing():
    assert software.in_range("2.13.0+cu130", ">=2.10,<3")
    assert not software.in_range("3.0.0rc1", "<3")


INSTALL = software.Install("0.1.0", "3.12.1", "/v/bin/python", "/v/lib/gpu_engine", "/v", False, (
    software.Package("click", ">=8.1,<9", "8.5.1"), software.Package("rich", ">=13.7", "13.0"),
    software.Package("psutil", ">=5.9", None)))


@pytest.mark.parametrize(("prefix", "conda", "cure"), [
    ("/v", False, "/v/bin/python -m pip install 'rich>=13.7'"),
    ("/home/a/.local/share/uv/tools/gpu-panel", False, "uv tool upgrade --reinstall gpu-panel"),
    ("/home/a/.local/share/pipx/venvs/gpu-panel", False, "pipx reinstall gpu-panel"),
    ("/opt/conda/envs/t", True, "conda install -p /opt/conda/envs/t -c conda-forge 'rich>=13.7'")])
def test_packages_out_of_range_are_mended_as_they_were_installed(prefix, conda, cure):
    found = software.judge_install(replace(INSTALL, prefix=prefix, conda=conda))
    assert level_of(found, "rich is 13.0", ">=13.7", cure) == ["problem"]
    assert level_of(found, "psutil is not installed") == ["problem"]
    assert level_of(found, "what it needs: click 8.5.1") == ["ok"]


CUDA13, CUDA12, CPU, ROCM = (Build("2.13.0", "13.0", None), Build("2.12.0", "12.9", None),
                             Build("2.13.0+cpu", None, None), Build("2.13.0", None, "6.4"))


@pytest.mark.parametrize(("build", "gpus", "cuda", "level", "words"), [
    (CUDA13, "nvml", "13.0", "ok", "for CUDA 13.0"),
    (CUDA13, "nvml", "12.4", "problem", "too old for it, as it takes CUDA 12.4"),
    (CUDA12, "nvml", "12.2", "ok", "for CUDA 12.9"),  # compatible within a major version
    (CUDA12, "nvml", "13.0", "ok", ""),
    (CPU, "nvml", "13.0", "problem", "whl/cu130"),
    (CPU, "nvml", "12.4", "problem", "whl/cu126"),
    (ROCM, "nvml", "13.0", "problem", "for ROCm 6.4"),
    (ROCM, "amd", None, "ok", ""),
    (CUDA13, "amd", None, "problem", "can't use the AMD GPUs"),
    (CPU, None, None, "ok", "for CPUs"),
    (None, None, None, "problem", "/p -m pip install torch")])
def test_torch_fits_the_driver(build, gpus, cuda, level, words):
    found = software.judge_torch([software.Torch("/p", "the default", build)], gpus=gpus, cuda=cuda)
    assert level_of(found, words) == [level]


def test_without_torch_by_default_one_near_by_is_offered():
    found = software.judge_torch([software.Torch("/p", "the default", None),
                                  software.Torch("/q", "$VIRTUAL_ENV", CUDA13)], gpus=None,
                                 cuda=None)
    assert level_of(found, "no torch in /p", "--set run.python=/q") == ["problem"]


NONE = Inventory((), "nvml")


@pytest.mark.parametrize(("cards", "found", "level", "words"), [
    (devices.Cards(), NONE, "note", "no GPU driver"),
    (devices.Cards(("1002",)), NONE, "note", "cards of AMD"),
    (devices.Cards(("10de", "10de")), NONE, "problem", "2 NVIDIA cards"),
    (devices.Cards(("10de",), ("nouveau",)), NONE, "problem", "nouveau"),
    (devices.Cards(("10de",), container=True), NONE, "problem", "--gpus all"),
    (devices.Cards(("10de",), ("nvidia",), "580.95"), NONE, "problem", "libnvidia-compute-580"),
    (devices.Cards(("10de",)), replace(NONE, problem="the driver did not answer in 12 s"),
     "problem", "dmesg"),
    (devices.Cards(("10de",)), Inventory((GPU,), "nvml", "580.159", "13.0"), "ok",
     "driver 580.159, takes CUDA up to 13.0"),
    (devices.Cards(("10de",)), replace(NONE, hidden=True, inherited_visible="-1",
                                       visible_variable="CUDA_VISIBLE_DEVICES"), "note",
     "unset CUDA_VISIBLE_DEVICES")])
def test_drivers(cards, found, level, words):
    judged = devices.judge_drivers(cards, [found])
    assert level_of(judged, words) == [level]
    assert len(judged) == 1


def test_devices_with_something_wrong():
    inventory = Inventory((GPU,), "nvml")
    sample = Sample(GPU, memory_used=30 * GIB, memory_total=80 * GIB, throttle=(TOO_HOT,),
                    health=("2 uncorrected memory errors",), notes=("persistence mode is off",),
                    problem="GPU is lost")
    found = devices.judge_devices(inventory, [sample])
    for words, level in (("1 × NVIDIA A100", "ok"), ("GPU 0: GPU is lost", "problem"),
                         ("2 uncorrected", "problem"), (TOO_HOT, "problem"),
                         ("nvidia-smi -pm 1", "note"), ("no process is seen", "note")):
        assert level_of(found, words) == [level], words
    held = replace(sample, processes=(DeviceProcess(1),))
    assert not level_of(devices.judge_devices(inventory, [held]), "no process is seen")
    assert level_of(devices.judge_devices(Inventory((), "cpu"), ()), "no devices") == ["problem"]


FINE = folders.Folder("/h", True, free=50 * GIB, least=64 << 20, scarce=2 * GIB, kind="ext4",
                      locks=True, clock=0.0)


@pytest.mark.parametrize(("change", "level", "words"), [
    ({}, "ok", "/h on ext4, 50.0 GiB free"),
    ({"there": False}, "ok", "it will be made"),
    ({"unwritable": "permission denied"}, "problem", "GPU_PANEL_HOME"),
    ({"owner_is_other": True}, "problem", "belongs to another"),
    ({"others_can_write": True}, "problem", "chmod go-w /h"),
    ({"free": 1 << 20}, "problem", "prune"), ({"free": GIB}, "note", "prune"),
    ({"locks": False}, "problem", "locks don't work"), ({"locks": None}, "ok", "/h"),
    ({"kind": "nfs4"}, "note", "on another machine"),
    ({"clock": -300.0}, "problem", "300 s behind")])
def test_folders(change, level, words):
    assert level_of(folders.judge(replace(FINE, **change)), words) == [level]


def test_the_shared_folder():
    assert [folders.judge_shared(*x)[0].level for x in (
        ("/s", True, "it is open to others"), (None, False, None), ("/s", False, None),
        ("/s", True, None))] == ["problem", "note", "note", "ok"]


FULL = surroundings.Terminal(True, "xterm-256color", True, True, 120, 40)


@pytest.mark.parametrize(("change", "level", "words"), [
    ({}, "ok", "TERM=xterm-256color, 120×40"),
    ({"is_one": False}, "note", "no terminal"), ({"term": "dumb"}, "problem", "export TERM"),
    ({"described": False}, "note", "does not know TERM"), ({"rows": 20}, "note", "80×24"),
    ({"utf8": False}, "note", "export LANG"), ({"truecolor": False}, "note", "COLORTERM"),
    ({"no_color": True}, "note", "unset NO_COLOR"),
    ({"tmux": True, "clipboard": "external"}, "note", "tmux set -s set-clipboard on"),
    ({"screen": True}, "note", "GNU screen passes no clipboard")])
def test_terminals(change, level, words):
    assert level_of(surroundings.judge_terminal(replace(FULL, **change)), words) == [level]


@pytest.mark.parametrize(("change", "level", "words"), [
    ({"shm": 64 << 20, "container": True}, "note", "docker run --shm-size"),
    ({"shm": 64 << 20}, "note", "remount"), ({"shm": 32 * GIB}, "ok", "32.0 GiB"),
    ({"files": 1024, "files_hard": 4096}, "note", "ulimit -n 4096"),
    ({"files": 1024, "files_hard": 1024}, "note", "limits.conf"),
    ({"files": 65536}, "ok", "65,536"), ({"memory": 2 * GIB, "memory_now": GIB}, "note", "1.0 GiB"),
    ({"clock_behind": 9000.0}, "problem", "2:30:00 before"), ({"clock_behind": -5.0}, None, ""),
    ({"synchronised": False}, "note", "set-ntp"), ({"synchronised": True}, "ok", "network")])
def test_limits(change, level, words):
    found = level_of(surroundings.judge_limits(surroundings.Limits(**change)), words)
    assert found == ([level] if level else [])


def test_logout():
    said = surroundings.judge_logout(surroundings.Logout(True, "… loginctl enable-linger"))
    assert (said[0].level, said[0].cure) == ("problem", "loginctl enable-linger")
    assert {surroundings.judge_logout(surroundings.Logout(*x))[0].level
            for x in ((True, None, True), (True,), (False,))} == {"ok"}


def test_runs_and_files():
    runs = user_files.Runs(9, 1, tuple("abcdefg"), ("a",), (("x", "state.json is a FIFO"),), 2,
                           False)
    found = user_files.judge_runs(runs)
    assert level_of(found, "run a is lost", "gpu-engine stop a") == ["problem"]
    assert level_of(found, "run b is lost", "gpu-engine resume b") == ["note"]
    assert level_of(found, "1 more are lost") == ["note"]
    assert level_of(found, "run x", "FIFO") == ["note"]
    assert level_of(found, "2 runs wait", "gpu-engine queue") == ["problem"]
    assert [f.level for f in user_files.judge_runs(replace(runs, lost=(), left=(), unreadable=(),
                                                     waiter=True))] == ["ok"]
    files = user_files.judge_files(user_files.Files(5, (("/p/x.toml", "/p/x.toml: no"),), (
        ("hosts.toml", "it is wrong"), ("notify.toml", None))))
    assert [f.level for f in files] == ["problem", "problem", "ok"]
    assert "4 presets, notify.toml" in files[-1].text
    hosts = user_files.judge_hosts([("a", ()), ("b", ("no torch", "old"))])
    assert [f.level for f in hosts] == ["ok", "problem"]
    assert hosts[1].cure == "gpu-engine hosts check b"
