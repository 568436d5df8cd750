"""What stands before the program in a command: `env X=1`, `uv run`, `nohup`, `python -u`. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True)
class _Wrapper:
    """A program whose arguments end in another command."""

    verbs: frozenset[str] = frozenset()
    """One of these comes before the options; none: there is no such word."""
    values: frozenset[str] = frozenset()
    """Options that take the next word."""
    words: int = 0
    """Words between its options and the command."""


def _of(values: str = "", *, verbs: str = "", words: int = 0) -> _Wrapper:
    return _Wrapper(frozenset(verbs.split()), frozenset(values.split()), words)


_UV = _of("--with --with-editable --with-requirements --extra --no-extra --group --no-group "
          "--only-group --package --python -p --env-file --directory --project --index "
          "--default-index --index-url -i --extra-index-url --find-links -f --cache-dir "
          "--config-file --color --config-setting -C --refresh-package --upgrade-package -P "
          "--reinstall-package --no-build-package --no-binary-package --resolution --prerelease "
          "--exclude-newer --link-mode --index-strategy --keyring-provider --python-platform "
          "--allow-insecure-host --from -w", verbs="run")
_CONDA = _of("-n --name -p --prefix --cwd -r --root-prefix -e --env -a --attach", verbs="run")

_WRAPPERS = {
    "env": _of("-u --unset -C --chdir"), "uv": _UV, "uvx": _Wrapper(values=_UV.values),
    "conda": _CONDA, "mamba": _CONDA, "micromamba": _CONDA,
    "poetry": _of("-C --directory -P --project", verbs="run"),
    "pdm": _of("-p --project", verbs="run"),
    "pipenv": _of(verbs="run"), "rye": _of(verbs="run"),
    "hatch": _of("-e --env -p --project", verbs="run"),
    "pixi": _of("-e --environment --manifest-path", verbs="run"),
    "nohup": _of(), "setsid": _of(), "time": _of("-f --format -o --output"),
    "nice": _of("-n --adjustment"), "ionice": _of("-c --class -n --classdata"),
    "stdbuf": _of("-i --input -o --output -e --error"), "chrt": _of("-T -P -D", words=1),
    "timeout": _of("-s --signal -k --kill-after", words=1), "taskset": _of(words=1),
    "numactl": _of("-i -N -C -m -p -l --interleave --cpunodebind --physcpubind --membind "
                   "--preferred"),
    "xvfb-run": _of("-n --server-num -s --server-args -e --error-file -f --auth-file"),
    "apptainer": _of("-B --bind --env --env-file -H --home --pwd --overlay -W --workdir",
                     verbs="exec", words=1),
    "singularity": _of("-B --bind --env --env-file -H --home --pwd --overlay -W --workdir",
                       verbs="exec", words=1),
    "nsys": _of("-o --output -t --trace -s --sample -c --capture-range -f --force-overwrite -w "
                "--show-output -d --duration -y --delay", verbs="profile"),
}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def name_of(word: str) -> str:
    """A program's name without its folder."""
    return PurePath(word).name


def is_python(word: str) -> bool:
    """Whether a command's first word is a Python interpreter."""
    return re.fullmatch(r"(python|pypy)[\d.]*", name_of(word)) is not None


def program(command: Sequence[str]) -> list[str]:
    """The command behind all wrappers; empty where there is none."""
    return unwrapped(command)[1]


def unwrapped(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """The variables that `env` sets before a command (`X=1`), and the command behind all wrappers.
    """
    rest, variables = list(command), list[str]()
    for _ in range(len(command)):
        if not rest:
            break
        name = name_of(rest[0])
        if name == "env" and rest[1:2] and rest[1] in ("-S", "--split-string"):
            try:
                rest = ["env", *shlex.split(" ".join(rest[2:3])), *rest[3:]]
            except ValueError:  # an open quote: env will say so
                break
        behind = _behind(_WRAPPERS[name], rest[1:]) if name in _WRAPPERS else None
        if behind is None:
            break
        if name == "env":
            while behind and _ASSIGNMENT.fullmatch(behind[0]):
                variables.append(behind.pop(0))
        if name == "uv" and behind and behind[0].endswith(".py"):
            behind.insert(0, "python")
        rest = behind
    return variables, rest


def _behind(wrapper: _Wrapper, words: list[str]) -> list[str] | None:
    """The command among a wrapper's arguments; None: it runs none."""
    if wrapper.verbs:
        words = _without_options(wrapper, words)
        if not words or words[0] not in wrapper.verbs:
            return None
        words = words[1:]
    return _without_options(wrapper, words)[wrapper.words:]


def _without_options(wrapper: _Wrapper, words: list[str]) -> list[str]:
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "--":
            return words[at + 1:]
        if wrapper is _UV and words[at] in ("-m", "--module"):
            return ["python", "-m", *words[at + 1:]]
        at += 2 if words[at] in wrapper.values else 1
    return words[at:]


def module_or_script(command: Sequence[str]) -> tuple[str | None, list[str]]:
    """What a Python command runs, its own options left out: (module of -m, its arguments), or
    (None, the script and its arguments)."""
    words = list(command[1:])
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                words[:1] = []
            continue
        for at, letter in enumerate(word[1:], 1):
            more = word[at + 1:]
            if letter == "m":
                return (more, words) if more else (words[0] if words else "", words[1:])
            if letter == "c":
                return None, []
            if letter in "WX":
                if not more:
                    words[:1] = []
                break
    return None, words
