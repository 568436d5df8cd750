"""What is said of a run, and the payload that each service wants."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from urllib.request import Request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.events.view import Progress
from gpu_engine.notify import messages, send
from gpu_engine.notify.config import To
from gpu_engine.notify.messages import Message
from gpu_engine.runs.state import AttemptRecord, Cause, State

NOW = 1_800_000_000.0
ENDED = State("failed", "3f2a", "digits", NOW - 100, NOW - 90, NOW - 10, attempt=2,
              reason="rank 3: CUDA out of memory",
              cause=Cause("CUDA out of memory\nmore", 3, "OutOfMemoryError", host="gpu2"),
              attempts=(AttemptRecord(1, NOW - 90, NOW - 60, "failed"),
                        AttemptRecord(2, NOW - 50, NOW - 10, "failed")))
SO_FAR = Progress(1240, 3000, 1.8321, None, None, None)


def said(event="failed", state=ENDED, progress=SO_FAR, **more) -> Message:
    return messages.of_run(event, state, progress, **{"name": "digits", "machine": "head",
                                                      "now": NOW} | more)


def test_a_failure_says_where_when_and_why_in_a_sentence():
    told = said(on=("gpu1", "gpu2"))
    assert told.title == "digits failed"
    assert told.text == ("digits (run 3f2a) on gpu1, gpu2 failed after 01:10, at step 1,240 of "
                         "3,000, loss 1.832, in attempt 2: rank 3 on gpu2: OutOfMemoryError: "
                         "CUDA out of memory")
    assert (told.seconds, told.cause) == (
        70.0, "rank 3 on gpu2: OutOfMemoryError: CUDA out of memory")


@pytest.mark.parametrize(("event", "state", "why", "ends"), [
    ("finished", replace(ENDED, state="completed", cause=None, reason=None), None,
     "on head completed after 01:10, at step 1,240 of 3,000, loss 1.832, in attempt 2"),
    ("lost", replace(ENDED, state="lost", cause=None, reason="its supervisor died; last step 7"),
     None, ": its supervisor died; last step 7"),
    ("stalled", replace(ENDED, state="running", ended=None), "rank 1 has stalled for 00:42",
     ": rank 1 has stalled for 00:42"),
    ("stopped", replace(ENDED, state="stopped", cause=None, reason=None, attempts=(), attempt=1),
     None, "was stopped after 01:20, at step 1,240 of 3,000, loss 1.832")])
def test_the_other_events(event, state, why, ends):
    assert said(event, state, why=why).text.endswith(ends)


def test_what_is_not_known_is_left_out():
    bare = State("failed", "3f2a", "x", NOW)
    text = said(state=bare, progress=Progress(None, None, None, None, None, None), name="").text
    assert text == "3f2a (run 3f2a) on head failed"


@given(st.text(), st.text(max_size=3000), st.text(),
       st.sampled_from(["failed", "lost", "stalled"]))
def test_no_control_character_is_told_and_no_length_is_unbounded(name, cause, host, event):
    state = replace(ENDED, reason=cause, cause=Cause(cause, 0))
    told = said(event, state, name=name, on=(host,), why=cause)
    for text in (told.title, told.text, told.cause or "", *told.on):
        assert not {unicodedata.category(c) for c in text} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert len(told.text) < 1200


# --- payloads -----------------------------------------------------------------------------------

def body(request: Request) -> dict:
    assert isinstance(request.data, bytes)
    return json.loads(request.data)


def test_ntfy_is_sent_json_at_the_servers_root():
    post = send.post(To("p", "ntfy", "https://ntfy.example.org/below/my%20topic", token="tk_1"),
                       said())
    assert post.full_url == "https://ntfy.example.org/below/"
    assert post.headers["Authorization"] == "Bearer tk_1"
    value = body(post)
    assert value == {"topic": "my topic", "title": "digits failed", "message": said().text,
                     "priority": 4, "tags": ["x"]}
    assert body(send.post(To("p", "ntfy", "https://ntfy.sh/t"), said("finished")))[
        "priority"] == 3


def test_any_json_endpoint_gets_every_fact():
    told = said(progress=replace(SO_FAR, loss=float("nan")))
    value = body(send.post(To("j", "json", "https://x/hook?a=1"), told))
    assert value | {"text": ""} == {
        "event": "failed", "title": "digits failed", "text": "", "machine": "head", "time": NOW,
        "run": "3f2a", "name": "digits", "on": [], "state": "failed", "attempt": 2,
        "cause": "rank 3 on gpu2: OutOfMemoryError: CUDA out of memory", "seconds": 70.0,
        "step": 1240, "total_steps": 3000, "loss": None, "warnings": [], "sweep": None}
    assert "loss NaN" in value["text"]


@pytest.mark.parametrize("text", ["ä" * 3000, "x" + "€" * 2000, "xyz" + "😀" * 1500])
def test_ntfy_text_stays_below_the_size_at_which_it_would_be_an_attachment(text):
    post = send.post(To("p", "ntfy", "https://ntfy.sh/t"), replace(said(), text=text))
    told = body(post)["message"]
    assert 3990 < len(told.encode()) <= 4000
    assert text.startswith(told.removesuffix("…"))
