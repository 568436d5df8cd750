"""gpu-engine mcp, spoken to by the SDK's own client over the streams of a real process."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import subprocess
import sys
from contextlib import asynccontextmanager, redirect_stderr
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from gpu_engine.cli import mcp as ours
from gpu_engine.cli.mcp import Rights
from gpu_engine.common import units
from gpu_engine.common.errors import Problem, UserError
from gpu_engine.interpreters import choose
from gpu_engine.places.verbs import launch
from gpu_engine.runs import folder as runs
from gpu_engine.runs import notes
from gpu_engine.spec.read import from_dict

from ..command_line import called
from ..conftest import over, slots, wait_for
from ..remote.run.kit import make_hosts
from ..sweep.made import ended, nobody_starts, submitted

ENGINE = str(Path(sys.executable).with_name("gpu-engine"))
WAITS = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@asynccontextmanager
async def agent(*options: str):
    """`tool(name, **arguments)` of a server with these options: (its answer, whether an error)."""
    from mcp import Client, StdioServerParameters, stdio_client

    server = StdioServerParameters(command=ENGINE, args=["mcp", *options], env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        async def tool(name: str, **arguments: object) -> tuple[dict, bool]:
            found = await client.call_tool(name, arguments)
            told = json.loads(found.content[0].text)
            assert len(found.content[0].text) <= ours.LONGEST
            assert next(iter(told)) == "summary"
            assert told["texts"] == ours.DATA
            return told, found.is_error

        tool.client = client
        yield tool


def error(told: tuple[dict, bool]) -> dict:
    assert told[1], told
    assert set(told[0]["errors"][0]) == {"what", "value", "why", "remedy"}
    return told[0]["errors"][0]


async def test_it_may_look_and_nothing_else(home):
    run = launch(from_dict({"task": {"command": WAITS}, "devices": {"ids": ["cpu:1"]}}),
                 inventory=slots(2))
    async with agent() as tool:
        listed = {t.name: t for t in (await tool.client.list_tools()).tools}
        assert set(listed) == {"devices", "plan", "run", "queue", "sweep", "runs", "show", "curve",
                               "logs", "compare", "note", "code", "stop", "diagnose"}
        assert not listed["run"].annotations.read_only_hint
        assert listed["show"].annotations.read_only_hint
        assert listed["run"].input_schema["properties"]["grid"]["type"] == "array"
        devices, _ = await tool("devices")
        assert "cpu:0" in [d["id"] for d in devices["devices"]]
        machines, _ = await tool("devices", hosts=True)
        free, all_devices = machines["rows"][0]["free"], len(machines["rows"][0]["devices"])
        all_free = free == sum(d["state"] == "free" for d in machines["rows"][0]["devices"])
        assert machines["summary"] == f"local: {free} of {all_devices} devices " \
            + ("free" if all_free else "usable")
        for name, arguments in (("run", {"command": WAITS}), ("stop", {"run": run.id})):
            refused = error(await tool(name, **arguments))
            assert refused["why"] == f"{name} is not allowed to you"
            assert f"--allow {name}" in refused["remedy"]
        assert [r.id for r in runs.all_runs()] == [run.id]
        assert run.state().live
        plan, _ = await tool("plan", preset="default", devices="cpu:0", set=["train.steps=3"])
        assert plan["spec"]["train"]["steps"] == 3
        wrong = error(await tool("plan", preset="default", devices="cpu:0",
                                 set=["amp.dtype=fp16"]))
        assert (wrong["what"], wrong["remedy"]) == ("amp.dtype", "amp.dtype=bf16")
        named = error(await tool("plan", preset="default", set=["run.python=/bin/true"]))
        assert (named["what"], named["value"]) == ("run.python", "/bin/true")
        assert error(await tool("runs", filtre="x"))["what"] == "filtre"
        assert error(await tool("show", run="--help"))["value"] == "--help"
        wait_for(lambda: "up" in run.log(0).read_text() if run.log(0).exists() else False)
        assert (await tool("logs", run=run.id, search="UP"))[0]["lines"] == ["up"]
        assert (await tool("logs", run=run.id, search="down"))[0]["lines"] == []
        told = await asyncio.gather(*(tool(name) for name in ("queue", "runs", "devices") * 4))
        assert [next(reversed(one)) for one, _ in told] == ["rows", "rows", "host"] * 4
        wait_for(lambda: run.state().state == "running")  # which is told after its ranks speak
        [row] = (await tool("runs"))[0]["rows"]
        assert (row["id"], row["state"]) == (run.id, "running")
    run.stop(now=True)


async def test_its_runs_are_bounded_tagged_and_its_own_also_for_the_next_process(home):
    other = launch(from_dict({"task": {"command": WAITS}, "devices": {"ids": ["cpu:1"]}}),
                   inventory=slots(2))
    options = ("--allow", "run", "--allow", "stop", "--limit", "5m", "--max-runs", "2",
               "--max-devices", "1", "--as", "night")
    async with agent(*options) as tool:
        assert error(await tool("run", command=WAITS, n=2, mode="ddp"))["what"] == "--max-devices"
        grid = error(await tool("run", command=[*WAITS, "--lr", "1"], devices="cpu:0",
                                grid=["lr=1,2,3"]))
        assert (grid["what"], grid["value"]) == ("--max-runs", 2)
        first, _ = await tool("run", command=WAITS, devices="cpu:0", limit="9h",
                              set=["run.grace=1e9", "run.limit_from=step"], tag=["mine"])
        second, _ = await tool("run", command=["true"], devices="cpu:0", queue=True, limit="20s",
                               begin="+1h")
        assert error(await tool("run", command=["true"], devices="cpu:0"))["what"] == "--max-runs"
    async with agent(*options) as tool:
        found = [runs.find(one["id"]) for one in (first, second)]
        bounds = [run.plan().spec.run for run in found]
        assert [(b.limit, b.limit_from, b.grace, b.grace_most) for b in bounds] == [
            (300.0, "start", 60.0, 60.0), (20.0, "start", 60.0, 60.0)]
        assert [one["said"][0] for one in (first, second)] == [
            f"run.limit: it ends {text}, as whoever has set you up has said (gpu-engine mcp "
            "--limit)" for text in ("05:00 after the start of its ranks, not after 9:00:00",
                                    "00:20 after the start of its ranks")]
        assert notes.read(found[0].path).tags == ("agent:night", "mine")
        told, _ = await tool("note", run=first["id"], text="no better", discard=True)
        assert (told["note"], told["verdict"]) == ("no better", "discard")
        assert told["summary"] == f"{first['id']}: discard no better"
        assert error(await tool("note", run=first["id"], untag=["mine", "agent:night"])
                     )["what"] == "tag"
        assert notes.read(found[0].path).tags == ("agent:night", "mine")
        assert (await tool("code", run=first["id"]))[0]["patch"] == ""
        assert "was not started by you" in error(await tool("note", run=other.id, keep=True))["why"]
        refused = error(await tool("stop", run=other.id))
        assert refused["why"] == \
            f"run {other.id} was not started by you: it lacks the tag agent:night"
        for run in found:
            assert not (await tool("stop", run=run.id, now=True))[1]
            over(run)
            assert run.state().state == "stopped"
        assert other.state().live
        assert error(await tool("run", command=["true"], devices="cpu:0,cpu:1", mode="ddp")
                     )["what"] == "--max-devices"
    other.stop(now=True)


@pytest.mark.parametrize(("devices", "mode", "counted"), [
    ({"hosts": ["a:0,1", "b:cpu:0"]}, "ddp", ({"a:0", "a:1", "b:cpu:0"}, 0)),
    ({"hosts": ["any"], "pick": 2}, "ddp", (set(), 2)),
    ({"hosts": ["any"]}, "single", (set(), 1)),
    ({"ids": ["0"]}, "single", ({"local:0"}, 0)),
    ({"hosts": ["slurm"], "pick": 2}, "multinode", (set(), 4)),
    ({}, "single", (set(), 1)),
    ({}, "ddp", None),
    ({"hosts": ["a"]}, "ddp", None)])
def test_devices_are_counted_wherever_they_are(devices, mode, counted):
    spec = from_dict({"task": {"command": ["true"]}, "devices": devices,
                      "parallel": {"mode": mode, "nodes": 2 if mode == "multinode" else 1}})
    if counted is not None:
        assert ours._devices(spec) == counted
        return
    with pytest.raises(UserError, match="not known: say it"):
        ours._devices(spec)


async def test_a_run_on_a_host_counts_as_its_devices(home):
    make_hosts(home, "a")
    on_a = ["devices.hosts=a:cpu:0"]
    async with agent("--allow", "run,stop", "--max-devices", "1") as tool:
        first, _ = await tool("run", command=WAITS, set=on_a)
        there, _ = await tool("plan", command=WAITS, set=on_a)
        assert "on a, " in there["summary"]
        refused = error(await tool("run", command=["true"], devices="cpu:0"))
        assert "would have 2 devices" in refused["why"]
        assert not (await tool("stop", run=first["id"], now=True))[1]
        over(runs.find(first["id"]))
        last, _ = await tool("run", command=["true"], devices="cpu:0")
    over(runs.find(last["id"]))


async def test_servers_of_one_tag_are_bounded_together(home):
    async with agent("--allow", "run", "--max-runs", "1") as one, \
            agent("--allow", "run", "--max-runs", "1") as two, \
            agent("--allow", "run", "--max-runs", "1") as three:
        told = await asyncio.gather(*(tool("run", command=WAITS, devices="cpu:0", queue=True)
                                      for tool in (one, two, three)))
    assert sorted(wrong for _, wrong in told) == [False, True, True]
    assert {error(answer)["what"] for answer in told if answer[1]} == {"--max-runs"}
    [run] = runs.all_runs()
    run.stop(now=True)


@hypothesis.given(st.none() | st.floats(1, 1e4), st.sampled_from(["step", "start"]),
                  st.floats(1, 1e4), st.floats(1, 1e4), st.none() | st.floats(1, 1e4))
def test_no_run_of_an_agent_takes_longer_than_it_may(limit, since, grace, most, may):
    spec = from_dict({"task": {"command": ["x"]}, "run": {
        "limit": limit, "limit_from": since, "grace": grace, "grace_most": most}})
    with redirect_stderr(io.StringIO()) as said:
        [found] = Rights("agent:x", frozenset({"run"}), limit=may).limited([spec])
    took = min(may or math.inf, limit or may or math.inf)
    assert found == (spec if may is None else replace(spec, run=replace(
        spec.run, limit=took, limit_from="start", grace=min(grace, 60.0),
        grace_most=min(most, 60.0))))
    other = f", not after {units.clock(limit)}" if limit not in (None, took) else ""
    assert said.getvalue() == (
        f"run.limit: it ends {units.clock(took)} after the start of its ranks{other}, as whoever "
        "has set you up has said (gpu-engine mcp --limit)\n") * (
            may is not None and (limit, since) != (took, "start"))
    python = replace(spec, run=replace(spec.run, python="/x/python"))
    with pytest.raises(UserError) as caught:
        Rights("agent:x", frozenset({"stop"}), limit=may).limited([spec, python])
    assert caught.value.problems == (Problem(
        "run.python", "/x/python", "names what ranks are started with, and you may start none",
        "leave run.python out: an interpreter near by that has torch is planned with"),)
    assert Rights("agent:x", frozenset({"run"})).limited([python]) == [python]


def test_its_live_runs_count_with_those_that_are_to_come(home, monkeypatch):
    nobody_starts(monkeypatch)
    members = submitted("train.lr=1,2,3", devices={"ids": ["cpu:0"]}).runs
    for run in members[:2]:
        notes.tag(run.path, ["agent:x"])
    ended(members[1], [])
    same, other, two, all_free = (
        from_dict({"devices": devices, "parallel": {"mode": "ddp"}})
        for devices in ({"ids": ["cpu:0"]}, {"ids": ["cpu:1"]}, {"pick": 2}, {}))
    assert Rights("agent:x", devices=1).checked([same]) == [same]
    assert Rights("agent:x", runs=3, devices=4).checked([other, two]) == [other, two]
    for rights, problem in (
            (Rights("agent:x", runs=2), Problem(
                "--max-runs", 2, "1 of your runs are live or wait, and with 2 more they would be "
                "over 2", "wait until one has ended, or stop one")),
            (Rights("agent:x", devices=3), Problem(
                "--max-devices", 3, "your live and waiting runs would have 4 devices; 3 are "
                "allowed", "wait until one has ended, or name devices that your runs have"))):
        with pytest.raises(UserError) as caught:
            rights.checked([other, two])
        assert caught.value.problems == (problem,)
    for spec in (all_free, replace(two, devices=replace(two.devices, pick=None, hosts=["a"]))):
        with pytest.raises(UserError) as caught:
            Rights("agent:x", devices=9).checked([spec])
        assert caught.value.problems == (Problem(
            "devices", spec.devices.hosts, "how many devices it would take is not known: say it",
            "devices.pick=1"),)


INJECTED = {
    "plan": [{"preset": "--json"}, {"preset": "--no-notify"}, {"preset": "-h"},
             {"preset": "default", "set": ["--"]}, {"preset": "default", "n": "1 --json"},
             {"preset": "default", "n": True}, {"preset": "default", "grid": "--json"},
             {"command": "python x.py"}, {"command": [["python"]]}, {"preset": ["default"]},
             {"preset": "default", "stop_worse": "no"}, {"preset": "default", "mode": "--"},
             {"preset": "--", "command": ["true"]}],
    "run": [{"preset": "--no-notify"}, {"preset": "--tag=agent:other"},
            {"preset": "--queue", "command": ["true"]}, {"command": ["true"], "queue": "no"},
            {"command": ["true"], "queue": 1}, {"command": ["true"], "after": "--no-notify"},
            {"command": ["true"], "tag": ["agent:other"]},
            {"command": ["true"], "tag": '["agent:other"]'}],
    "devices": [{"hosts": "no"}], "queue": [{"json": True}], "sweep": [{"sweep": "--help"}],
    "runs": [{"sort": "--help"}, {"n": "5 -f x"}],
    "show": [{"run": "--help"}, {"run": "-h"}, {"run": "--"}, {"run": ["a"]}],
    "curve": [{"run": "--help", "value": "--json"}], "logs": [{"run": "-f"}, {"run": "--help"}],
    "compare": [{"runs": ["--markdown", "--json"]}], "diagnose": [{"run": "--help"}],
    "note": [{"run": "--help"}, {"run": "last", "tag": ["agent:other"]}], "code": [{"run": "-h"}],
    "stop": [{"run": "--now"}, {"run": "--help", "now": True}]}
"""Arguments that would be an option, or another one, if they were typed."""


@pytest.mark.parametrize("name", INJECTED)
def test_no_argument_is_an_option(home, name):
    assert set(INJECTED) == set(ours.TOOLS)
    rights = ours.Rights("agent:mine", frozenset({"run", "stop"}))
    for given in INJECTED[name]:
        text, wrong = ours.call(name, given, rights)
        assert wrong, (given, text)
        assert "Usage" not in text, given
    assert not runs.all_runs()


async def test_what_can_not_be_read_is_answered(home):
    deep = '{"id": "x", "a": ' + '{"b": ' * 400 + "1" + "}" * 401
    asked = ['{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "show", '
             f'"arguments": {{"run": {deep}}}}}}}',
             '{"params": ' + deep + ', "jsonrpc": "2.0", "method": "x", "id": "two"}',
             '{"params": ' + "[" * 100_000 + "]" * 100_000 + ', "method": "x", "id": "last"}',
             "no JSON", '{"jsonrpc": "2.0", "id": 8}',
             '{"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": "x"}']
    server = subprocess.run([ENGINE, "mcp"], input="\n".join([*asked, ""]).encode(),
                            capture_output=True, check=True)
    told = [json.loads(line) for line in server.stdout.splitlines()]
    assert [(one["id"], one["error"]["code"]) for one in told] == [
        (7, -32700), ("two", -32700), ("last", -32700), (None, -32700), (8, -32700),
        (9, -32700)]


async def test_a_run_holds_none_of_its_streams_and_a_curve_has_200_points(home):
    prints = "import time; [print('val:', 1000 - i) for i in range(1000)]; time.sleep(600)"
    async with agent("--allow", "run,stop") as tool:
        started, _ = await tool("run", command=[sys.executable, "-uc", prints], devices="cpu:0",
                                metric=["val: (\\S+)"], set=["run.best=min:val"])
        run = runs.find(started["id"])
        wait_for(lambda: b'"val":1.0' in run.events(0).read_bytes() if run.events(0).exists()
                 else False)
        state = run.state()
        pids = {state.pid, *(p.pid for p in state.processes)}
        held = {str(fd.readlink()) for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir()}
        assert pids
        assert not [name for name in held if name.startswith("pipe:")]
        curve, _ = await tool("curve", run=run.id)
        assert (curve["value"], curve["least"]) == ("val", 1)
        assert len(curve["points"]) == 200
        assert (await tool("curve", run=run.id, n=5))[0]["points"][-1] == curve["points"][-1]
        run.stop(now=True)


def test_a_client_that_goes_away_in_mid_call_leaves_a_run_and_nothing_else(home):
    ask = [{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "run", "arguments": {"command": ["true"], "devices": "cpu:0"}}}]
    server = subprocess.Popen([ENGINE, "mcp", "--allow", "run"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    server.stdin.write(b"".join(json.dumps(one).encode() + b"\n" for one in ask))
    server.stdin.flush()
    [run] = wait_for(runs.all_runs)
    server.stdout.close()
    server.stdin.close()
    server.wait()
    over(run)
    assert run.state().state == "completed"
    assert notes.read(run.path).tags == ("agent:mcp",)
    assert [one.id for one in runs.all_runs()] == [run.id]


def test_without_the_library_and_with_wrong_options(home, monkeypatch):
    for options, sentence in ((("--allow", "fly"), "it takes run and stop"),
                              (("--limit", "0.1s"), "at least 1 s"),
                              (("--as", "a b"), "can't be a tag")):
        done = called("mcp", *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert sentence in done.stderr
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    done = called("mcp")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"type {choose.extra('mcp>=2')}" in done.stderr


@pytest.mark.parametrize(("tool", "given", "typed"), [
    ("run", {"command": '["python", "a b.py"]', "devices": "cpu:0", "queue": "false"},
     ["--devices=cpu:0", "--", "python", "a b.py"]),
    ("run", {"set": '["run.grace=3", "a=[1]"]', "queue": "true", "n": "2", "preset": "digits"},
     ["-n2", "--queue", "--set=run.grace=3", "--set=a=[1]", "digits"]),
    ("run", {"metric": "[a-z]+: (.*)", "tag": "3", "limit": None},
     ["--metric=[a-z]+: (.*)", "--tag=3"]),
    *(("runs", {"n": three, "filter": "7"}, ["--filter=7", "-n3", "--"])
      for three in (3, 3.0, "3.0")),
    ("run", {"queue": "yes"}, "queue"), ("run", {"queue": 1}, "queue"),
    ("run", {"command": "python train.py"}, "command"), ("run", {"tag": [["a"]]}, "tag"),
    ("run", {"tag": [True]}, "tag"), ("runs", {"n": True}, "n"), ("runs", {"n": 1.5}, "n"),
    ("runs", {"filter": {"a": 1}}, "filter"), ("runs", {"filter": 7}, "filter")])
def test_arguments_are_typed_by_the_schema_also_as_json_text(tool, given, typed):
    if isinstance(typed, list):
        # The order of options is the command's own.
        assert sorted(ours.TOOLS[tool].typed(given)) == sorted(typed)
    else:
        with pytest.raises(UserError) as refused:
            ours.TOOLS[tool].typed(given)
        assert refused.value.problems[0].key == typed


LONG = {"a": "x" * 90_000, "é": "é" * 30_000}


@pytest.mark.parametrize("found", [
    {"rows": [LONG] * 9}, {"rows": [LONG, 1] * 30}, LONG, {"a": [[[["x" * 30_000]]]]},
    {f"{i}": i for i in range(9000)}, {"a": {f"{i}": i for i in range(9000)}, "b": LONG},
    {"a" * 30_000: 1}, {f"{i}": {"a": [i] * 30} for i in range(900)}, {"a": {"a" * 30_000: "b"}},
    {f"{i}": [LONG] for i in range(20)},
    {"k" * 80 + f"{i}": [1] * 90_000 for i in range(9)},
    {"a": {"b": {"c": [LONG] * 50}}, "n": [1e300] * 9000}])
def test_an_answer_is_never_too_long_and_says_what_it_lacks(found):
    text = ours.answer("s" * 3000, found)
    told = json.loads(text)
    assert len(text) <= ours.LONGEST
    assert list(told)[:2] == ["summary", "cut"]
    assert told["summary"] == "s" * 500
    whole = ours.answer("s", {"a": "x" * (ours.LONGEST - 40)})
    assert "cut" not in json.loads(whole)


def test_rows_stay_whole_and_of_a_log_the_last_lines_stay():
    told = json.loads(ours.answer("", {"rows": [{"id": str(i), "text": "x" * 400}
                                                for i in range(100)]}))
    assert [row["id"] for row in told["rows"]] == [str(i) for i in range(len(told["rows"]))]
    assert all(len(row["text"]) == 400 for row in told["rows"])
    assert told["cut"] == [f"rows: the first {len(told['rows'])} of 100"]
    assert len(told["rows"]) > 50
    told = json.loads(ours.answer("", {"lines": [f"line {i}" for i in range(9000)]}))
    assert told["lines"][-1] == "line 8999"
    told = json.loads(ours.answer("", {"a": "x" * 90_000, "b": {"c": 1}}))
    assert told["b"] == {"c": 1}
    assert len(told["a"]) > 10_000
