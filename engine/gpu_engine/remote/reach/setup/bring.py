"""Doing what a plan says, over the shell there: everything is sent in the script itself."""

from __future__ import annotations

import base64
import io
import json
import secrets
import shlex
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach import shell, ssh
from gpu_engine.remote.reach.setup.decide import OLDEST, OLDEST_TORCH, Plan

_SECONDS = 1800.0
_MOST = 4 << 20
_SAYS = "gpu-panel: "


def bring(plan: Plan, requirements: Sequence[str], on_step: Callable[[str], None]) -> None:
    """Set it up; `on_step` gets each step in words. What was there before stays in use until the
    new one has been tried. Raises Unreachable, UserError with what the host said."""
    word = secrets.token_hex(8)

    def heard(line: str) -> None:
        if line.startswith(_SAYS):
            on_step(clean(line.removeprefix(_SAYS), 200))

    ran = shell.answer(plan.host, word, script(plan, requirements, word), _SECONDS, most=_MOST,
                       on_line=heard)
    if f"{word} done" in ran.out:
        return
    said = [clean(line, 400) for line in ran.out.splitlines()
            if line.strip() and not line.startswith(_SAYS)]
    raise UserError(f"{plan.host.name}: it could not be set up: "
                    f"{said[-1] if said else f'it ended with {ran.code}'}")


def script(plan: Plan, requirements: Sequence[str], word: str) -> bytes:
    """What the shell there is told. `word` says that it has begun, and that all went well."""
    place = PurePosixPath(ssh.SETUP)
    told = {"root": f"~/{place.parent}", "place": place.name, "name": plan.name, "uv": plan.uv,
            "requirements": list(requirements) if plan.index else [],
            "torch_site": plan.base.site if plan.base and plan.torch == "linked" else None,
            "torch": "torch>={}.{}".format(*OLDEST_TORCH) if plan.torch == "download" else None}
    sent = io.BytesIO()
    with zipfile.ZipFile(sent, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in plan.carried:
            for name, data in package.files.items():
                archive.writestr(f"site/{name}", data)
        archive.writestr("plan.json", json.dumps(told))
        archive.writestr("install_there.py",
                         Path(__file__).with_name("install_there.py").read_bytes())
    unpack = ("import base64, io, sys, zipfile; zipfile.ZipFile(io.BytesIO(base64.b64decode("
              "sys.stdin.read()))).extractall(sys.argv[1])")
    return b"\n".join([
        f"printf '%s\\n' {word}".encode(), b"set -e", b"umask 077", b"cd /", _base(plan),
        f'mkdir -p "$HOME/{place.parent}"'.encode(),
        f'there=$(mktemp -d "$HOME/{place.parent}/.sent-XXXXXX")'.encode(),
        b"trap 'rm -rf \"$there\"' EXIT",
        f"\"$base\" -c '{unpack}' \"$there\" <<'{word}'".encode(),
        base64.encodebytes(sent.getvalue()).rstrip(), word.encode(),
        b'"$base" "$there/install_there.py" "$there" </dev/null',
        f"printf '%s done\\n' {word}".encode(), b""])


def _base(plan: Plan) -> bytes:
    """Sets the shell's `base` to the interpreter that ours is made from."""
    if plan.base is not None:
        return b"base=" + shlex.quote(plan.base.path).encode()
    uv, version = shlex.quote(plan.uv or "uv"), "{}.{}".format(*OLDEST)
    return (f"{uv} python install --quiet {version} </dev/null\n"
            f"base=$({uv} python find {version})").encode()
