"""What has no effect at a place is refused or told there, by the command that a person types; see
docs/places.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gpu_engine.devices.discover import cpu_slots
from gpu_engine.plan.without_effect import BY_HAND, NEEDS, PLACES, SLURM, refused, told
from gpu_engine.spec import presets
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import RunSpec, known_keys
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.review import review
from tests.command_line import called
from tests.remote.run.kit import make_hosts
from tests.training import ranks

HERE, QUEUE = "plan single --devices cpu:0", "run --queue --begin +90m single --devices cpu:0"
SWEEP = f"{HERE} --grid train.lr=0.1,0.2,0.3,0.4"
HOST = "plan single --set devices.hosts=a:cpu:0"
HOSTS = f"{HOST},b:cpu:1"
ANY = "plan single -n 1 --set devices.hosts=a,b"
IN_SLURM, ON_SLURM = "slurm single", "plan --set devices.hosts=slurm"
OWN, OWN_HOSTS = "plan --mode ddp --devices cpu:0 --", "plan --set devices.hosts=a:cpu:0,b:cpu:1 --"
NODES = "plan --mode multinode --set parallel.nodes=2 --devices cpu:0 --"

ALONE = "would start a training of its own on each of 2 machines: leave it out (the ranks are " \
    "started here), or write {nodes}, {node_rank}, {master_addr}, {master_port}"
TOGETHER = "torchrun --nnodes {nodes} --node-rank {node_rank} --master-addr {master_addr} " \
    "--master-port {master_port}"
OUTSIDE = "outside of a sweep: leave it out, or make one by --grid or --repeat"
CELLS = [
    (HERE, "run.sync=send", 0, "run.sync has no effect on this machine: leave it out, or name "
                               "hosts in devices.hosts"),
    (HERE, "run.host_wait=9 train.restarts=1", 0, "run.host_wait has no effect on this machine"),
    (HERE, "run.limit_from=start", 0, "run.limit_from has no effect without run.limit: leave it "
                                      "out, or set run.limit too"),
    (HERE, "run.limit_from=start run.limit=9s", 0, None),
    (HERE, "train.lr_reference_batch=64", 0, "has no effect without train.lr_scale"),
    (HERE, "parallel.master_port=29501 parallel.timeout=9", 0, "parallel.master_port, "
     "parallel.timeout have no effect in mode single, only in ddp and multinode: leave them out"),
    (f"{OWN} true", "parallel.timeout=9", 0, "parallel.timeout has no effect on this command: "
                                             "leave it out, or set it in your script"),
    (f"{OWN} sh t", "parallel.master_port=29501", 0, "parallel.master_port has no effect on this"),
    (f"{OWN} sh t {{master_port}}", "parallel.master_port=29501", 0, None),
    (HERE, "run.stop_worse=true", 0, f"run.stop_worse has no effect {OUTSIDE}"),
    (QUEUE, "run.halving=3", 0, f"run.halving has no effect {OUTSIDE}"),
    (SWEEP, "run.stop_worse=true run.sync=send", 0, "run.sync has no effect on this machine"),
    (SWEEP, "run.halving=2 run.asha=true", 0, None),
    (SWEEP, "run.asha=true", 0, "run.asha has no effect without run.halving"),
    (HOST, "run.host_wait=9 run.limit=9s run.log_mb=1", 0, "run.host_wait has no effect without "
                                                           "train.restarts"),
    (HOST, "parallel.node_rank=1 run.host_wait=9 train.restarts=1", 0, "parallel.node_rank has no "
     "effect with devices.hosts, whose order says it: leave it out"),
    (ANY, "parallel.nodes=2", 0, "parallel.nodes has no effect with devices.hosts, each of which"),
    (HOST, "parallel.nodes=2", 0, "parallel.nodes has no effect with devices.hosts, each of which"),
    (HOSTS, "parallel.node_devices=1,1 run.host_wait=9 train.restarts=1 parallel.timeout=9", 0,
     "parallel.node_devices has no effect with devices.hosts"),
    (f"{OWN_HOSTS} torchrun --nproc-per-node 1 t", "", 2, f"torchrun {ALONE}"),
    (f"{OWN_HOSTS} torchrun t.py --node {{node_rank}}", "", 2, f"torchrun {ALONE}"),
    (f"{OWN_HOSTS} env X=1 accelerate launch t", "", 2, f"accelerate {ALONE}"),
    (f"{OWN_HOSTS} python -m torch.distributed.run t", "", 2, f"torch.distributed.run {ALONE}"),
    (f"{OWN_HOSTS} sh t", "", 2, f"sh {ALONE.replace('leave it out', 'name what it starts')}"),
    (f"{NODES} deepspeed t", "", 2, f"deepspeed {ALONE}"),
    (f"{OWN_HOSTS} {TOGETHER} t", "", 0, None),
    (f"{OWN_HOSTS} {TOGETHER} --nproc-per-node 2 t", "", 2, '"--nproc-per-node 2": starts 2 ranks, '
     "and the run has 1 device on node 0: give as many devices as ranks"),
    (f"{OWN_HOSTS} accelerate launch --machine_rank {{node_rank}} --num_processes 1 t", "", 2,
     "starts 1 rank, and the run has 2 devices in all: give as many devices as ranks"),
    (ANY, "run.stop_worse=true run.host_wait=9 train.restarts=1", 0,
     f"run.stop_worse has no effect {OUTSIDE}"),
    (IN_SLURM, "train.restarts=3 train.hang_timeout=9 run.metrics=auto run.log_mb=1", 0, None),
    (IN_SLURM, "run.halving=3", 0, f"run.halving has no effect {OUTSIDE}"),
    (IN_SLURM, "run.sync=send devices.share=true parallel.node_rank=1", 0,
     "run.sync, devices.share, parallel.node_rank have no effect on Slurm, which chooses nodes and "
     "devices: leave them out"),
    (IN_SLURM, "run.limit=5m run.limit_from=start", 0, None),
    (f"{ON_SLURM} --nodes 2 --mode ddp -- torchrun t", "", 2, f"torchrun {ALONE}"),
    (f"{ON_SLURM} --nodes 2 --mode ddp -- {TOGETHER} --nproc-per-node 1 t", "", 0, None),
    (ON_SLURM + ",a:0 -- sh t", "", 2, "a run is on Slurm's nodes or on hosts, not on both"),
    ("hold -n 1 --for 1m --set devices.hosts=a", "", 2, "hold has no such option. Devices of "
     "another machine: --devices gpu1:0; on Slurm: salloc --gpus=1"),
    ("hold --devices slurm --for 1m", "", 2, "salloc --gpus=1"),
    ("hold --devices a:0 -- true", "", 2, "ssh -t a gpu-engine hold"),
    ("fit single --set devices.hosts=a:cpu:0", "", 2, "only the machine that fit runs on can limit "
     "the memory of CPU slots: type gpu-engine fit on a"),
    ("fit single --set devices.hosts=a:0,b:0", "", 2, "name one host, or run gpu-engine fit on"),
    ("fit single --set devices.hosts=slurm", "", 2, "srun --gpus=1 --pty gpu-engine fit"),
    (f"{HERE} -o account=vision", "", 2, "run.sbatch.account = \"vision\": is for a run on Slurm: "
     "--set devices.hosts=slurm")]


@pytest.mark.parametrize(("line", "sets", "status", "says"), CELLS)
def test_it_is_said_where_it_is_typed(line, sets, status, says, home, tmp_path, monkeypatch):
    make_hosts(home, "a", "b")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").touch()
    words, _, command = line.partition(" -- ")
    done = called(*words.split(), *(w for key in sets.split() for w in ("--set", key)),
                  *(["--", *command.split()] if command else ()))
    if line == QUEUE:
        called("stop", done.stdout.strip())
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    assert (says or "") in said
    assert status or said.count("no effect") == bool(says), said


def test_a_port_that_is_taken_at_the_start_is_told_to_a_command(home, tmp_path):
    done = called("run", "--quiet", "--devices", "cpu:0", "--", "sh", "-c", "echo port $0 of $1",
                  "{master_port}", "{master_addr}")
    assert re.search(r"^port [1-9]\d{3,4} of 127\.0\.0\.1$", done.stdout, re.MULTILINE), done


LIMIT = "run.limit = 9.0: has no effect below torchrun, where nothing supervises the ranks: " \
    "leave it out, or start it by gpu-engine run"


def test_what_would_make_another_run_is_refused_and_the_rest_told():
    spec = from_dict({"run": {"limit": "9s", "metrics": "auto", "halving": 3, "log_mb": 1,
                              "give_way": True},
                      "train": {"restarts": 1, "hang_timeout": 9}, "devices": {"hosts": ["a"]}})
    found = refused(spec, BY_HAND, by="torchrun")
    assert {p.key for p in found} == set(PLACES[BY_HAND].refused)
    assert LIMIT in map(str, found)
    assert (refused(spec, SLURM), refused(RunSpec(), BY_HAND)) == ([], [])
    assert told(spec, BY_HAND, by="torchrun")[0].startswith(
        "run.log_mb has no effect below torchrun, where")


@pytest.mark.parametrize(("sections", "says"), [
    ({"devices": {"hosts": ["a:0"]}}, "in mode single"), ({}, "in mode single"),
    ({"parallel": {"mode": "ddp"}}, None),
    ({"task": {"command": ["python"]}, "parallel": {"mode": "multinode"}}, None),
    ({"task": {"command": ["python"]}, "devices": {"hosts": ["a", "b"]}, "parallel": {
        "mode": "multinode"}}, "on this command: leave it out"),
    ({"task": {"command": ["python"]}, "parallel": {"mode": "multinode", "launcher": "direct"}},
     "on this command: leave it out, or set it in your script")])
def test_where_a_timeout_is_not_heard(sections, says):
    spec = from_dict(sections | {"parallel": {"mode": "single", "timeout": 9, "nodes": 1}
                                 | sections.get("parallel", {})})
    found = [line for line in told(spec) if "parallel.timeout" in line]
    assert bool(found) == (says is not None)
    assert says is None or says in found[0]


def test_below_a_launcher_what_needs_a_supervisor_is_refused_and_what_would_help_is_told(tmp_path):
    def by_hand(*sets: str) -> tuple[int, str]:
        log = tmp_path / "log"
        words = [w for key in sets for w in ("--set", key)]
        status = ranks.zygote().start(["single", *words], {
            "PATH": "", "GPU_PANEL_HOME": str(tmp_path / "home"), "RANK": "0", "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ranks.free_port())}, log).wait()
        return status, log.read_text()

    status, said = by_hand("run.limit=9s")
    assert (status, said.strip()) == (2, LIMIT)
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home/notify.toml").touch()
    status, said = by_hand("devices.ids=cpu:0", "run.log_mb=1", f"run.python={sys.executable}",
                           "run.stop_worse=true", "train.steps=1")
    assert status == 0, said
    assert "warning: run.log_mb, run.stop_worse, run.python have no effect below torchrun, where " \
        "nothing supervises the ranks: leave them out, or start it by gpu-engine run\n" in said
    assert "warning: notify.toml tells nobody of it" in said


@pytest.mark.parametrize("name", ["ddp", "default", "dp", "multinode", "single"])
@pytest.mark.parametrize("hosts", [None, ["a:0"], ["a:0", "b:0"]])
def test_no_preset_of_ours_has_anything_without_effect(name, hosts):
    data = presets.load(name).data
    for place in (None, SLURM, BY_HAND) if hosts is None else (None,):
        spec = from_dict(data | ({} if hosts is None else {"devices": {"hosts": hosts}}))
        assert told(spec, place) == ()
        assert place is None or refused(spec, place) == []


def test_every_key_in_the_table_is_one_and_the_page_says_the_same_of_it():
    """docs/places.md has a row for each feature, and a cell for each place."""
    named = {key for at in PLACES.values() for key in (*at.told, *at.refused)}
    assert named <= set(known_keys())
    page = (Path(__file__).parents[1] / "docs/places.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()
            if line.startswith("| ") and line.count("|") == 8]
    assert len(rows) > 40
    for feature, *cells in rows:
        for key in set(re.findall(r"`([\w.]+)`", feature)) & named:
            for place, cell in zip((SLURM, BY_HAND), cells[-2:], strict=True):
                mark = "refused" if key in PLACES[place].refused else \
                    "warning" if key in PLACES[place].told or key in NEEDS else "yes"
                assert cell.startswith(mark), (feature, place)


def test_the_panel_says_it_too(home):
    draft = Draft(None, presets.load("single"))
    draft.put("run.sync", "send")
    draft.tick(["cpu:0"])
    found = review(draft.data, cpu_slots(), draft.base)
    assert found.plan is not None, found.problems
    assert "run.sync has no effect on this machine" in found.plan.warnings[0]
    draft.put("parallel.mode", "multinode")  # what another mode alone has is not taken along
    draft.put("parallel.node_rank", "1")
    draft.put("parallel.mode", "single")
    draft.put("run.sync", "none")
    assert review(draft.data, cpu_slots(), draft.base).plan.warnings == ()


def test_a_host_that_is_called_slurm_is_told_how_to_name_the_scheduler(home, tmp_path, monkeypatch):
    make_hosts(home, "slurm")
    monkeypatch.chdir(tmp_path)
    done = called("plan", "single", "--set", "devices.hosts=slurm:cpu:0")
    assert done.returncode == 0, done
    assert "warning: slurm is a host of yours" in done.stdout
    assert "devices.hosts=slurm:PARTITION" in done.stdout
