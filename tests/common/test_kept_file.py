"""A file that stays ours in a process that does what it likes with descriptors."""

import fcntl
import os
import resource

import pytest

from gpu_engine.common.kept_file import KeptFile

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


@pytest.fixture
def kept(tmp_path):
    file = KeptFile(tmp_path, "events", APPEND)
    yield file
    file.close()


def test_its_number_is_none_that_a_program_gets_by_itself(tmp_path):
    before = os.dup(0)
    os.close(before)
    kept = KeptFile(tmp_path, "events", APPEND)
    after = os.dup(0)
    os.close(after)
    assert after == before < kept.descriptor()
    assert fcntl.fcntl(kept.descriptor(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    kept.close()


def test_where_few_files_may_be_open_it_is_still_no_standard_one(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    standard = os.dup(0)
    os.close(0)
    try:
        kept = KeptFile(tmp_path, "events", APPEND)
        assert 2 < kept.descriptor() < 200
        kept.close()
    finally:
        os.dup2(standard, 0)
        os.close(standard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_number_that_has_become_the_programs_is_left_alone(tmp_path, kept):
    number = kept.descriptor()
    with (tmp_path / "own").open("wb", buffering=0) as own:
        os.dup2(own.fileno(), number)
        assert not kept.ours
        assert os.write(kept.descriptor(), b"ours\n")
        assert kept.ours
        assert kept.descriptor() != number
        os.write(number, b"own\n")
        os.close(number)
    assert (tmp_path / "own").read_text() == "own\n"
    assert (tmp_path / "events").read_text() == "ours\n"


def test_the_same_file_open_for_reading_is_not_the_one_to_write_to(tmp_path, kept):
    """As a rank's events file is for its lock, which may be the first to be opened again."""
    lock = KeptFile(tmp_path, "events")
    number = kept.descriptor()
    os.close(number)
    os.close(lock.descriptor())
    assert lock.descriptor() == number
    assert not kept.ours
    assert os.write(kept.descriptor(), b"ours\n")
    assert lock.ours
    lock.close()


def test_it_is_closed_once_and_never_for_the_program(tmp_path, kept):
    number = kept.descriptor()
    with (tmp_path / "own").open("wb") as own:
        os.dup2(own.fileno(), number)
        kept.close()
        os.write(number, b"own\n")  # it is still open
    os.close(number)
    kept.close()
