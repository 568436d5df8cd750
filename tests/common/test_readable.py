"""Whether a file has something to read."""

from __future__ import annotations

import os
import resource

import pytest

from gpu_engine.common.procs import readable


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_it_has_when_something_was_written_or_nobody_will_write(pipe):
    read, write = pipe
    assert not readable(read, 0)
    os.write(write, b"x")
    assert readable(read, 3000)
    os.read(read, 1)
    ended = os.pipe()
    os.close(ended[1])
    assert readable(ended[0], 3000)
    os.close(ended[0])


def test_a_process_may_have_thousands_of_files_open(pipe):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        os.dup2(pipe[0], 2000)
        os.write(pipe[1], b"x")
        assert readable(2000, 3000)
    finally:
        os.close(2000)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_that_is_closed_is_an_error(pipe):
    closed = os.dup(pipe[0])
    os.close(closed)
    with pytest.raises(OSError, match="is not open"):
        readable(closed, 0)
