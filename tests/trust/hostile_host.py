"""A machine that answers as it should not: `python -S hostile_host.py ANSWERS HOW`, for ssh.

It answers as `gpu-engine agent` does (`gpu_engine.remote.reach.protocol`), written here a second
time.
ANSWERS is a JSON file with a good answer for each kind of request; HOW names what is hostile, of
`BEHAVIOURS`. Nothing of the program is imported, so that it starts at once.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path

EVIL = "\x1b]52;c;aGk=\x07\x1b]0;owned\x07\x9d0;owned\x9c\x9b31m\x1b[2J\u202ereversed\u2066\x00\r\b"
PIECE = 256 << 10
STEP = "step-00000010"
WRONG = (None, -1, 1e308, EVIL, [], [[1]], {}, {"a": 1}, True, 10**30)


class Host:
    """One connection."""

    def __init__(self, answers, how):
        self.good = answers
        self.how = how

    def serve(self):
        """Be the shell that is told to become the agent, then the agent."""
        text = b""
        while not (found := re.search(rb"gpu.engine agent ([0-9a-f]+)[;\s]", text)):
            got = os.read(0, 65536)
            if not got:
                return
            text += got
        opening = BEHAVIOURS.get(self.how, {}).get("opening")
        if opening is not None:
            opening(self, found[1].decode())
        self.write(f"\ngpu-panel-agent {found[1].decode()}\n".encode())
        rest = b""
        while data := os.read(0, 65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    self.hear(json.loads(line))

    def hear(self, request):
        """Answer a request, hostilely where the behaviour says how."""
        if not isinstance(request, dict):
            return
        kind = request.get("kind")
        hostile = BEHAVIOURS.get(self.how, {}).get(kind)
        for answer in self.usual(kind, request) if hostile is None else hostile(self, request):
            self.write(answer if isinstance(answer, bytes) else
                       json.dumps(answer).encode() + b"\n")

    def usual(self, kind, request):
        """Good answers."""
        if kind == "follow":
            yield piece("ranks/00000.jsonl", 0, b"")
            yield told(self, "completed")
            yield {"kind": "done"}
        elif kind == "choose":
            yield {"kind": "chosen", "name": STEP}
        else:
            for answer in self.good.get(kind, [{"kind": "done"}]):
                yield answer | ({"boot": self.how, "place": self.how, "network": self.how,
                                 "clock": time.time()}
                                if answer["kind"] == "welcome" else {})

    def write(self, data):
        """Until nobody listens."""
        try:
            while data:
                data = data[os.write(1, data):]
        except OSError:
            os._exit(0)


STATE = b"weights"
FILES = {"manifest.json": json.dumps({"step": 10, "files": {"state.pt": {
    "size": len(STATE), "sha256": hashlib.sha256(STATE).hexdigest()}}}).encode(), "state.pt": STATE}


def piece(name, offset, data, **more):
    """Bytes of a file."""
    return {"kind": "piece", "name": name, "offset": offset,
            "data": base64.b64encode(data).decode()} | more


def told(host, state, **more):
    """How the run is."""
    return {"kind": "told", "state": host.good["state"] | {"state": state} | more}


def spoilt(value, new):
    """A copy of `value` with `new` for each text of it, but for what kind it is."""
    if isinstance(value, dict):
        return {k: v if k in ("kind", "state", "id") and isinstance(v, str) else spoilt(v, new)
                for k, v in value.items()}
    if isinstance(value, list):
        return [spoilt(v, new) for v in value]
    return new + value + new if isinstance(value, str) else value


def all_wrong(answer):
    """Copies of an answer, each with another value of a wrong type."""
    for key in [k for k in answer if k != "kind"]:
        for new in WRONG:
            yield answer | {key: new}


def ends(code, text):
    """Say this on the error stream and end."""
    def opening(host, word):
        os.write(2, text.encode())
        os._exit(code)

    return opening


def noise(host, word):
    """Print without end before the agent begins."""
    while True:
        host.write(b"Welcome to gpu1\n" * 1000)


def spoil(kind):
    """Every text of the good answers has escapes."""
    return {kind: lambda host, request: [spoilt(a, EVIL) for a in host.usual(kind, request)]}


def wrong(kind, number):
    """The good answer with a value of a wrong type, the `number`th."""
    return {kind: lambda host, request: list(all_wrong(max(host.usual(kind, request), key=len)))
            [number::7][:1]}


def changed(kind, **fields):
    """The good answer with other values."""
    return {kind: lambda host, request: [a | fields for a in host.usual(kind, request)]}


def endless(kind, line):
    """The same line without end."""
    def hostile(host, request):
        while True:
            yield line(host) if callable(line) else line

    return {kind: hostile}


def just(kind, *answers):
    """These answers in place of the good ones."""
    return {kind: lambda host, request: answers}


def follows(*pieces, then="completed"):
    """A run with these pieces of files."""
    def hostile(host, request):
        for one in pieces:
            yield one(host) if callable(one) else one
        if then:
            yield told(host, then)
            yield {"kind": "done"}

    return {"follow": hostile}


def mirror_without_end(host, request):
    """Events, as fast as they are taken."""
    yield told(host, "running")
    data, at = (b'{"t": 1, "kind": "warning", "message": "x"}\n' * 5900)[:PIECE], 0
    while True:
        yield piece("ranks/00000.jsonl", at, data)
        at += len(data)


def device(ident, **more):
    """A device, as the good answer has it."""
    return lambda host: host.good["watch"][0]["inventory"]["devices"][0] | {"id": ident} | more


def devices(*made):
    """These devices."""
    def hostile(host, request):
        for answer in host.usual(request["kind"], request):
            if answer["kind"] == "welcome":
                answer["inventory"]["devices"] = [m(host) for m in made]
            yield answer

    return {"hello": hostile, "watch": hostile}


SHARES = ("utilization", "temperature", "power", "power_limit", "fan", "memory_utilization")
COUNTS = ("memory_used", "memory_total", "clock_sm", "clock_memory", "memory_reserved",
          "clock_sm_max", "clock_memory_max", "performance_state", "ecc_corrected",
          "ecc_uncorrected", "pcie_generation", "pcie_width")


def figures(share, count):
    """Every figure of its devices and of itself is this one, and all else is as it should be."""
    def hostile(host, request):
        for answer in host.usual(request["kind"], request):
            if answer["kind"] == "looked":
                answer["waiting"] = abs(count) >> 10
                for sample in answer["snapshot"]["samples"]:
                    sample |= dict.fromkeys(SHARES, share) | dict.fromkeys(COUNTS, count)
                    sample["device"] |= {"index": count, "kind": "gpu", "uuid": "GPU-1"}
                    sample["processes"] = [
                        {"pid": count, "memory": count, "started": 1e11, "host_memory": count,
                         "cpu": share, "utilization": share, "user": "me", "command": "x"}]
                answer["snapshot"]["host"] = dict.fromkeys(
                    ("memory_used", "memory_total", "disk_free"), count) | {"cpu": share}
            yield answer

    return {"watch": hostile}


REFUSED = {"kind": "failed", "message": f"{EVIL}no" * 500}


def deep(text, count=100_000):
    """A line nested so deep."""
    return (text * count).encode() + b"\n"


OPENINGS = {
    "ends with escapes": {"opening": ends(3, f"{EVIL} no such {EVIL}\n" * 50)},
    "prints without end": {"opening": noise},
    "a line without end": just("hello", b'{"kind": "welcome", ' + b" " * (4 << 20)),
    "lines that are none": just("hello", b"nonsense\n" * 3000),
    "lists without end": just("hello", b'{"a": ' + deep("[")),
    "tables without end": just("hello", deep('{"a":')),
    "numbers of 5,000 digits": just("hello", b'{"kind": "welcome", "protocol": '
                                    + b"1" * 5000 + b"}\n"),
    "NaN": changed("hello", clock=float("nan")),
    "a clock without end": changed("hello", clock=1e300, disk_free=-1),
    "another protocol": changed("hello", protocol=10**18, version=EVIL * 100),
    "who it is, with escapes": spoil("hello"),
    "its devices, with escapes": spoil("watch"),
    "refuses with escapes": just("hello", REFUSED),
    "refuses devices with escapes": just("watch", REFUSED),
    "devices that are one": devices(device("0"), device("0"), device("0")),
    "devices with hostile ids": devices(device("../x"), device("-1"), device(EVIL),
                                        device("0,1;touch executed"), device("")),
    "4,096 devices": devices(*(device(str(i)) for i in range(4096))),
    "devices of absurd sizes": devices(device("0", memory_total=2**62, index=-(2**62),
                                              cores=list(range(4096)))),
    "figures of devices without end": figures(1e300, 2**62),
    "figures of devices below all": figures(-1e300, -(2**62)),
    "devices that were read at no time": {"watch": lambda host, request: [
        a | {"snapshot": a["snapshot"] | {"taken": 1e300}} if a["kind"] == "looked" else a
        for a in host.usual("watch", request)]},
    "another answer": just("hello", {"kind": "chosen", "name": STEP}),
    **{f"wrong values {n}": wrong("hello", n) for n in range(7)},
    **{f"wrong devices {n}": wrong("watch", n) for n in range(4)},
}
"""Hostile as soon as they are asked who they are, or for their devices."""

RUNS = {
    "names that lead elsewhere": follows(
        *(piece(name, 0, b"owned\n") for name in (
            "../../../outside/made", "/outside/made", "ranks/../../made", "state.json",
            "plan.json", "ranks/00007.jsonl", "notes.json", "node1.log",
            "hosts/evil.json", "checkpoints/step-00000010/state.pt", "", "\0", ".", EVIL))),
    "bytes at another place": follows(piece("ranks/00000.log", 10**12, b"x"), then=None),
    "bytes before its beginning": follows(piece("ranks/00000.log", -5, b"x"), then=None),
    "all with escapes": follows(
        piece("ranks/00000.log", 0, (EVIL + "\n").encode() * 10),
        piece("supervisor.log", 0, (EVIL + "\n").encode() * 10),
        piece("ranks/00000.jsonl", 0, b"".join(
            json.dumps({"t": 1e9, "kind": kind, "step": 1, EVIL: 1.0, "=1+1": 2.0,
                        "message": EVIL, "phase": EVIL, "detail": EVIL}).encode() + b"\n"
            for kind in ("eval", "metric", "warning", "phase"))),
        lambda host: told(host, "failed", name=EVIL, reason=EVIL * 9, cause={
            "message": EVIL, "rank": 0, "type": EVIL, "traceback": EVIL, "host": EVIL})),
    "a state of wrong types": follows(lambda host: told(host, "running", attempts=[{}], pid="x"),
                                      then=None),
    "a state of absurd numbers": follows(
        lambda host: told(host, "failed", attempt=2**62, pid=2**62, created=-1e300, ended=-1e300,
                          started=1e300, exit_code=-(2**62), processes=[
                              {"rank": 2**62, "pid": -1, "ticks": -1, "exit": 2**62}] * 4096,
                          cause={"message": "x" * 65536, "rank": -5})),
    "a run elsewhere": changed("start", run="../../../outside", path="/etc/\x1b]0;owned\x07"),
    "it has not started": just("start", {"kind": "failed", "message": EVIL * 500}),
    "it does not say whether": just("start", {"kind": "done"}),
}
"""Hostile once a run is on them."""

CHECKPOINTS = {
    "no checkpoint any more": just("choose", {"kind": "done"}),
    **{f"a checkpoint called {name}": just("choose", {"kind": "chosen", "name": name})
       for name in ("../outside", "/outside", "step-00000011/../../x", EVIL, "..", "")},
    "a checkpoint is refused": just("choose", {"kind": "failed", "message": EVIL * 99}),
    "a checkpoint of wrong types": wrong("choose", 3),
}
"""Hostile when they are asked for weights."""

REMOVALS = {
    "it was the root": just("remove", {"kind": "removed", "path": f"/{EVIL}", "freed": 2**62,
                                       "code": f"/{EVIL}", "kept": EVIL}),
    "removal is refused": just("remove", {"kind": "failed", "message": EVIL * 99}),
    "nothing was removed": just("remove", {"kind": "done"}),
}
"""Hostile when a run is to be removed there."""

FLOOD = {"a mirror without end": {"follow": mirror_without_end}}
BEHAVIOURS = OPENINGS | RUNS | CHECKPOINTS | REMOVALS | FLOOD


if __name__ == "__main__":
    Host(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]).serve()
