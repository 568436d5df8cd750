"""A machine that answers as it should not: `python -S hostile_host.py ANSWERS HOW`, for ssh.

It answers as `gpu-engine --wire` does (`gpu_engine.remote.reach.protocol`), written here a second
time.
ANSWERS is a JSON file with the good answers of each command; HOW names what is hostile, of
`BEHAVIOURS`. Nothing of the program is imported, so that it starts at once.
"""

import hashlib
import json
import os
import re
import shlex
import sys
import time
from pathlib import Path

EVIL = "\x1b]52;c;aGk=\x07\x1b]0;owned\x07\x9d0;owned\x9c\x9b31m\x1b[2J\u202ereversed\u2066\x00\r\b"
PIECE = 128 << 10
GO_ON = ("devices", "follow", "port")
STEP = "step-00000010"
WRONG = (None, -1, 1e308, EVIL, [], [[1]], {}, {"a": 1}, True, 10**30)


class Host:
    """One connection."""

    def __init__(self, answers, how):
        self.good = answers
        self.how = how

    def serve(self):
        """Be the shell that is told to become our program, then that program."""
        text = b""
        while not (found := re.search(rb"set -- --wire ([0-9a-f]+) (.*)\n", text)):
            got = os.read(0, 65536)
            if not got:
                return
            text += got
        word, words = found[1], shlex.split(found[2].decode())
        while words[0] == "--in":
            del words[:2]
        kind = " ".join(words[:2]) if words[0] == "runs" else words[0]
        behaviour = BEHAVIOURS.get(self.how, {})
        if "opening" in behaviour:
            behaviour["opening"](self, word.decode())
        self.write(b"\ngpu-panel-wire %s %s\n" % (word, behaviour.get("wire", b"6 0.1.0")))
        hostile = behaviour.get(kind)
        for answer in self.usual(kind) if hostile is None else hostile(self, kind):
            self.write(word + (answer if isinstance(answer, bytes) else
                               json.dumps(answer).encode() + b"\n"))
        if kind in GO_ON:
            while os.read(0, 65536):
                continue

    def usual(self, kind):
        """Good answers."""
        if kind == "follow":
            yield piece("ranks/00000.jsonl", 0, b"")
            yield told(self, "completed", kind="ended")
        for answer in self.good.get(kind, []):
            yield answer | ({"boot": self.how, "place": self.how, "network": self.how,
                             "clock": time.time()}
                            if kind == "devices" and "boot" in answer else {}) \
                if isinstance(answer, dict) else answer

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


def piece(name, offset, data):
    """Bytes of a file."""
    return {"kind": "piece", "name": name, "offset": offset,
            "text": data.decode("utf-8", "surrogateescape")}


def told(host, state, **more):
    """How the run is."""
    return {"kind": "state"} | host.good["state"] | {"state": state} | more


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
    return {kind: lambda host, kind: [spoilt(a, EVIL) for a in host.usual(kind)]}


def wrong(kind, number):
    """The good answer with a value of a wrong type, the `number`th."""
    return {kind: lambda host, kind: list(all_wrong(max(host.usual(kind), key=len)))
            [number::7][:1]}


def changed(kind, **fields):
    """The good answer with other values."""
    return {kind: lambda host, kind: [a | fields for a in host.usual(kind)]}


def endless(kind, line):
    """The same line without end."""
    def hostile(host, kind):
        while True:
            yield line(host) if callable(line) else line

    return {kind: hostile}


def just(kind, *answers):
    """These answers in place of the good ones."""
    return {kind: lambda host, kind: answers}


def follows(*pieces, then="completed"):
    """A run with these pieces of files."""
    def hostile(host, kind):
        for one in pieces:
            yield one(host) if callable(one) else one
        if then:
            yield told(host, then, kind="ended")

    return {"follow": hostile}


def mirror_without_end(host, kind):
    """Events, as fast as they are taken."""
    yield told(host, "running")
    data, at = (b'{"t": 1, "kind": "warning", "message": "x"}\n' * 5900)[:PIECE], 0
    while True:
        yield piece("ranks/00000.jsonl", at, data)
        at += len(data)


def device(ident, **more):
    """A device, as the good answer has it."""
    return lambda host: host.good["devices"][0]["inventory"]["devices"][0] | {"id": ident} | more


def devices(*made):
    """These devices."""
    def hostile(host, kind):
        for answer in host.usual(kind):
            if answer["kind"] == "machine":
                answer["inventory"]["devices"] = [m(host) for m in made]
            yield answer

    return {"devices": hostile}


SHARES = ("utilization", "temperature", "power", "power_limit", "fan", "memory_utilization")
COUNTS = ("memory_used", "memory_total", "clock_sm", "clock_memory", "memory_reserved",
          "clock_sm_max", "clock_memory_max", "performance_state", "ecc_corrected",
          "ecc_uncorrected", "pcie_generation", "pcie_width")


def figures(share, count):
    """Every figure of its devices and of itself is this one, and all else is as it should be."""
    def hostile(host, kind):
        for answer in host.usual(kind):
            if answer["kind"] == "look":
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

    return {"devices": hostile}


REFUSED = {"errors": [{"what": EVIL, "value": [EVIL], "why": f"{EVIL}no" * 500, "remedy": EVIL}]}


def deep(text, count=100_000):
    """A line nested so deep."""
    return (text * count).encode() + b"\n"


OPENINGS = {
    "ends with escapes": {"opening": ends(3, f"{EVIL} no such {EVIL}\n" * 50)},
    "prints without end": {"opening": noise},
    "a line without end": just("devices", b'{"kind": "machine", ' + b" " * (4 << 20)),
    "lines that are none": just("devices", b"nonsense\n" * 3000),
    "lists without end": just("devices", b'{"a": ' + deep("[")),
    "tables without end": just("devices", deep('{"a":')),
    "numbers of 5,000 digits": just("devices", b'{"kind": "machine", "clock": '
                                    + b"1" * 5000 + b"}\n"),
    "NaN": changed("devices", clock=float("nan")),
    "a clock without end": changed("devices", clock=1e300, disk_free=-1),
    "another wire": {"wire": b"9" * 5000 + f" {EVIL}".encode() * 100},
    "who it is, with escapes": spoil("devices"),
    "refuses with escapes": just("devices", REFUSED),
    "devices that are one": devices(device("0"), device("0"), device("0")),
    "devices with hostile ids": devices(device("../x"), device("-1"), device(EVIL),
                                        device("0,1;touch executed"), device("")),
    "4,096 devices": devices(*(device(str(i)) for i in range(4096))),
    "devices of absurd sizes": devices(device("0", memory_total=2**62, index=-(2**62),
                                              cores=list(range(4096)))),
    "figures of devices without end": figures(1e300, 2**62),
    "figures of devices below all": figures(-1e300, -(2**62)),
    "devices that were read at no time": {"devices": lambda host, kind: [
        a | {"snapshot": a["snapshot"] | {"taken": 1e300}} if a["kind"] == "look" else a
        for a in host.usual(kind)]},
    "another answer": just("devices", {"checkpoint": STEP}),
    **{f"wrong values {n}": wrong("devices", n) for n in range(7)},
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
    "a run elsewhere": changed("run", id="../../../outside", path="/etc/\x1b]0;owned\x07"),
    "it has not started": just("run", REFUSED),
    "it does not say whether": just("run", {}),
}
"""Hostile once a run is on them."""

CHECKPOINTS = {
    "no checkpoint any more": just("export", {}),
    **{f"a checkpoint called {name}": just("export", {"checkpoint": name})
       for name in ("../outside", "/outside", "step-00000011/../../x", EVIL, "..", "")},
    "a checkpoint is refused": just("export", REFUSED),
    "a checkpoint of wrong types": wrong("export", 3),
}
"""Hostile when they are asked for weights."""

REMOVALS = {
    "it was the root": just("runs rm", [{"here": {"path": f"/{EVIL}", "freed": 2**62,
                                                  "code": f"/{EVIL}", "kept": EVIL}}]),
    "removal is refused": just("runs rm", REFUSED),
    "nothing was removed": just("runs rm", {}),
}
"""Hostile when a run is to be removed there."""

FLOOD = {"a mirror without end": {"follow": mirror_without_end}}
BEHAVIOURS = OPENINGS | RUNS | CHECKPOINTS | REMOVALS | FLOOD


if __name__ == "__main__":
    Host(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]).serve()
