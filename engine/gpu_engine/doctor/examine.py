"""Run the checks, all at once. One that hangs or breaks is a finding, and never ends the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.doctor.records import Check, Examined, Finding, problem


def examine(checks: Sequence[Check]) -> Iterator[Examined]:
    """Run all checks, each in a thread of its own, and yield what they find in the order given, as
    soon as it is known. Takes no longer than the longest limit. A check that hangs keeps its
    thread, which ends with the program."""
    began = time.monotonic()
    found: list[Sequence[Finding] | None] = [None] * len(checks)
    threads = [threading.Thread(target=_run, args=(check, found, i), name=f"check {check.name}",
                                daemon=True) for i, check in enumerate(checks)]
    for thread in threads:
        thread.start()
    for i, (check, thread) in enumerate(zip(checks, threads, strict=True)):
        thread.join(max(began + check.seconds - time.monotonic(), 0.0))
        findings = found[i]
        if findings is None:
            findings = [problem(f"no answer in {check.seconds:g} s: what it asks hangs")]
        yield Examined(check.name, tuple(findings))


def _run(check: Check, found: list[Sequence[Finding] | None], i: int) -> None:
    try:
        found[i] = list(check.look())
    except UserError as err:  # it says what to do
        found[i] = [problem(clean(str(err)))]
    except Exception as err:  # noqa: BLE001  a broken check must not hide what the others find
        found[i] = [problem(f"this check itself failed: {type(err).__name__}: {clean(str(err))}",
                            "please report it, with the output of gpu-engine doctor --json")]
