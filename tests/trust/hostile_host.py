"""A machine that answers as it should not: `python -S hostile_host.py ANSWERS HOW`, for ssh.

It speaks the agent's protocol (`gpu_engine.remote.reach.protocol`), written here a second time.
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
import zlib
from pathlib import Path

EVIL = "\x1b]52;c;aGk=\x07\x1b]0;owned\x07\x9d0;owned\x9c\x9b31m\x1b[2J\u202ereversed\u2066\x00\r\b"
PIECE = 256 << 10
BOMB = bytes(256 << 20)
STEP = "step-00000010"
WRONG = (None, -1, 1e308, EVIL, [], [[1]], {}, {"a": 1}, True, 10**30)


class Host:
    """One connection."""

    def __init__(self, answers, how):
        self.good = answers
        self.how = how
        self.running = None
        """The number of the request that follows the run."""

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
        kind, number = request.get("kind"), request.get("id")
        hostile = BEHAVIOURS.get(self.how, {}).get(kind)
        if hostile is not None:
            for answer in hostile(self, request):
                self.say(number, answer)
            return
        for answer in self.usual(kind, request):
            self.say(number, answer)

    def usual(self, kind, request):
        """Good answers."""
        if kind == "cancel":
            return
        if kind == "follow":
            yield piece("ranks/00000.jsonl", 0, b"")
            yield told(self, "completed")
            yield {"kind": "done"}
        elif kind == "checkpoints":
            yield {"kind": "checkpoints", "files": {
                f"{STEP}/{name}": len(data) for name, data in FILES.items()}}
        elif kind == "read":
            yield piece(request["name"], 0, FILES[request["name"].rpartition("/")[2]])
            yield {"kind": "done"}
        else:
            for answer in self.good.get(kind, [{"kind": "done"}]):
                yield answer | ({"clock": time.time(), "boot": self.how, "place": self.how,
                                 "network": self.how} if kind == "hello" else {})

    def say(self, number, answer):
        """Send one answer; bytes as they are."""
        self.write(answer if isinstance(answer, bytes) else
                   json.dumps({"id": number} | answer).encode() + b"\n")

    def write(self, data):
        """Until nobody listens."""
        try:
            while data:
                data = data[os.write(1, data):]
        except OSError:
            os._exit(0)


STATE = b"weights"
FILES = {"state.pt": STATE, "manifest.json": json.dumps({"step": 10, "files": {"state.pt": {
    "size": len(STATE), "sha256": hashlib.sha256(STATE).hexdigest()}}}).encode()}


def piece(name, offset, data, **more):
    """Bytes of a file."""
    return {"kind": "piece", "name": name, "offset": offset,
            "data": base64.b64encode(data).decode()} | more


def packed(name, offset, data, **more):
    """Bytes of a file, packed."""
    return piece(name, offset, zlib.compress(data, 9), packed=True, **more)


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
    return {kind: lambda host, request: list(all_wrong(next(iter(host.usual(kind, request)))))
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
    """Events, as fast as they are taken; a thousandth of it goes over the wire."""
    yield told(host, "running")
    data, at = (b'{"t": 1, "kind": "warning", "message": "x"}\n' * 5900)[:PIECE], 0
    while True:
        yield packed("ranks/00000.jsonl", at, data)
        at += len(data)


def device(ident, **more):
    """A device, as the good answer has it."""
    return lambda host: host.good["watch"][0]["inventory"]["devices"][0] | {"id": ident} | more


def devices(*made):
    """These devices in the answer to `watch`."""
    def hostile(host, request):
        first, *rest = host.usual("watch", request)
        yield first | {"inventory": first["inventory"] | {"devices": [m(host) for m in made]}}
        yield from rest

    return {"watch": hostile}


REFUSED = {"kind": "failed", "message": f"{EVIL}no" * 500}


def deep(text, count=100_000):
    """A line nested so deep."""
    return (text * count).encode() + b"\n"


OPENINGS = {
    "ends with escapes": {"opening": ends(3, f"{EVIL} no such {EVIL}\n" * 50)},
    "prints without end": {"opening": noise},
    "a line without end": just("hello", b'{"id": 1, "kind": "welcome", ' + b" " * (4 << 20)),
    "lines that are none": just("hello", b"nonsense\n" * 3000),
    "lists without end": just("hello", b'{"id": 1, "a": ' + deep("[")),
    "tables without end": just("hello", deep('{"a":')),
    "numbers of 5,000 digits": just("hello", b'{"id": 1, "kind": "welcome", "protocol": '
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
    "answers to nobody": just("hello", b'{"id": 9007199254740991, "kind": "done"}\n' * 5000
                              + b'{"id": -1, "kind": "done"}\n'),
    "another answer": just("hello", {"kind": "checkpoints", "files": {}}),
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
    "a bomb": follows(lambda host: packed("ranks/00000.jsonl", 0, BOMB), then=None),
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
    "no checkpoint any more": just("checkpoints", {"kind": "checkpoints", "files": {}}),
    "another checkpoint": just("checkpoints", {"kind": "checkpoints", "files": {
        "step-00000099/manifest.json": 5}}),
    "checkpoints that lead elsewhere": just("checkpoints", {
        "kind": "checkpoints", "files": dict.fromkeys((
            "../outside/manifest.json", "/outside/manifest.json", "step-00000011/../../x.pt",
            "step-00000011/\x1b]0;owned\x07.pt", "..", ""), 7)}),
    "4,096 checkpoints": just("checkpoints", {"kind": "checkpoints", "files": {
        f"step-{n:08d}/state.pt": 2**62 for n in range(4096)}}),
    "a state that is another": {"read": lambda host, request: [
        piece(request["name"], 0, b"evil..."), {"kind": "done"}]},
    "a state without end": endless("read", lambda host: packed("x", 0, bytes(PIECE))),
    "a state at another place": {"read": lambda host, request: [
        piece(request["name"], 10**9, b"x"), {"kind": "done"}]},
    "a state that is a bomb": {"read": lambda host, request: [
        packed(request["name"], 0, BOMB), {"kind": "done"}]},
    "a state that is refused": just("read", {"kind": "failed", "message": EVIL * 99}),
    "checkpoints are refused": just("checkpoints", {"kind": "failed", "message": EVIL * 99}),
    "checkpoints of wrong types": wrong("checkpoints", 3),
    **{f"a manifest of {what}": {
        "read": lambda host, request, content=content: [piece(request["name"], 0, content),
                                                        {"kind": "done"}],
        "checkpoints": lambda host, request, content=content: [
            {"kind": "checkpoints", "files": {"step-00000020/manifest.json": len(content),
                                              "step-00000020/state.pt": 7}}]}
       for what, content in {
           "lists without end": deep("["), "numbers without end": b'{"step": 1e999, "files": {}}',
           "wrong types": b'{"step": 1, "metrics": 7, "files": {"state.pt": {"sha256": "x"}}}',
           "escapes": json.dumps({"step": 20, "metrics": {EVIL: 1}, "files": {
               "state.pt": {"size": 7, "sha256": EVIL}, f"../{EVIL}": {"sha256": EVIL}}}).encode(),
           "names of wrong types": b'{"step": 1, "files": {"state.pt": {"sha256": "x"}, "a": 5}}',
           }.items()},
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
