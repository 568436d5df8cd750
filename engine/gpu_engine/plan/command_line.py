"""The command line with which a person or a script would start the same run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_engine.common.errors import SpecError
from gpu_engine.devices.backends import registry
from gpu_engine.devices.records import Device
from gpu_engine.plan import own_command
from gpu_engine.plan.processes import placeholders, torchrun_options
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.spec import modes
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import differences, for_people, to_dict


def lines(plan: LaunchPlan, devices: Sequence[Device], *, base: tuple[str, RunSpec] | None,
          python: str) -> tuple[str, ...]:
    """One line for one machine; for several, node 0's first. Secrets are masked in it."""
    given, base = for_people(plan.spec), _for_people(base)
    command = given.task.command
    many = plan.nodes > 1
    if command is None and not many:
        return (engine_line(given, base),)
    env = {**given.run.env, **registry.environment(plan.source, devices)}
    unset = registry.load(plan.source).cleared
    if command is None:
        spec = _without_place(given)
        trainer = [python, "-m", "gpu_engine.worker", *arguments(spec, base)]
        return tuple(
            typed(env, unset, own_command.under_torchrun(
                trainer, torchrun_options(plan, node_rank=n)))
            for n in range(plan.nodes))
    argv = own_command.fill(command, placeholders(plan))
    if not modes.get(plan.mode).process_a_device or own_command.launches_itself(command):
        return (typed(env, unset, argv),)
    return tuple(
        typed(env, unset, own_command.under_torchrun(argv, torchrun_options(plan, node_rank=node)))
        for node in range(plan.nodes))


def engine_line(spec: RunSpec, base: tuple[str, RunSpec] | None) -> str:
    """The `gpu-engine run` command line for a spec, with secrets masked."""
    return " ".join(map(quoted, [
        "gpu-engine", "run", *arguments(for_people(spec), _for_people(base))]))


def _for_people(base: tuple[str, RunSpec] | None) -> tuple[str, RunSpec] | None:
    return None if base is None else (base[0], for_people(base[1]))


def typed(env: Mapping[str, str], unset: Sequence[str], argv: Sequence[str]) -> str:
    """A command line for a shell: `argv` with `env` added to its environment, and without `unset`.
    """
    without = ["env", *(word for name in unset for word in ("-u", name))] if unset else []
    shown = [f"{key}={quoted(value)}" for key, value in env.items()]
    return " ".join([*without, *shown, *map(quoted, argv)])


def quoted(word: str) -> str:
    """A word as a shell reads it. What can't be seen, as escapes and bytes that are no text, is
    written as $'…', which bash, zsh and POSIX.1-2024 know: a line is looked at before it is
    run."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_visible, word)) + "'"


def _visible(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))


def arguments(spec: RunSpec, base: tuple[str, RunSpec] | None) -> list[str]:
    """The preset and the `--set`s that give exactly this spec."""
    if base is not None:
        sets = differences(base[1], spec)
        if _gives(base[1], sets, spec):
            return [base[0], *_sets(sets)]
    # No preset, or one that holds something this spec has not: from the defaults.
    return _sets(differences(RunSpec(), spec))


def _sets(assignments: Sequence[str]) -> list[str]:
    return [word for a in assignments for word in ("--set", a)]


def _gives(base: RunSpec, sets: Sequence[str], wanted: RunSpec) -> bool:
    data = to_dict(base, defaults=False)
    try:
        apply_sets(data, sets)
        return from_dict(data) == wanted
    except SpecError:
        return False


def _without_place(spec: RunSpec) -> RunSpec:
    """`spec` without the keys that torchrun's options give already, so that they can't disagree."""
    fresh = RunSpec().parallel
    return replace(spec, parallel=replace(
        spec.parallel, node_rank=fresh.node_rank, master_addr=fresh.master_addr,
        master_port=fresh.master_port))
