"""What the form says, in one line, for while it is folded. Pure."""

from __future__ import annotations

from textual.content import Content

from gpu_engine.common.clean import clean
from gpu_engine.plan import own_command
from gpu_engine.spec import modes
from gpu_panel.launch.draft import Draft

_GAP = "   "


def summary(draft: Draft) -> Content:
    """Task, mode, batch, precision and length: "BytesGPT   DDP   batch 32 global   bf16   300
    steps". Of a person's own command no more than it is told. The learning rate stands with the
    arithmetic."""
    command = draft.value("task.command")

    def told(key: str) -> bool:
        return command is None or own_command.is_told(
            command if isinstance(command, list) else None, key)

    mode = modes.find(draft.mode)
    task = draft.text("task.command") if command is not None else \
        draft.text("task.use").rpartition(":")[2] or "no task"
    words = [mode.short if mode is not None else draft.mode]
    if told("batch.size"):
        meaning = draft.text("batch.meaning").replace("_", " ").replace("gpu", "GPU")
        words.append(f"batch {draft.text('batch.size')} {meaning}")
    if told("batch.accumulate") and draft.text("batch.accumulate") != "1":
        words.append(f"accumulate {draft.text('batch.accumulate')}")
    if told("amp.dtype"):
        off = draft.text("amp.dtype") == "off"
        words.append("AMP off" if off else draft.text("amp.dtype"))
    if draft.value("train.steps") is not None:
        words += [f"{draft.text('train.steps')} steps"] * told("train.steps")
    elif told("train.epochs"):
        count = draft.text("train.epochs") or "1"
        words.append(f"{count} epoch{'s' * (count != '1')}")
    return Content.assemble((clean(task, 60), "bold"), *(_GAP + clean(word) for word in words))
