"""hosts.toml: read with every mistake named, written so that the person's own words stay."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach import hosts
from gpu_engine.remote.reach.hosts import Host

_PATHS = st.text(st.characters(codec="utf-8"), max_size=20).map("/".__add__).filter(
    str.isprintable)
_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True).filter("local".__ne__)
_HOSTS = st.builds(
    Host, _NAMES, ssh=st.none() | st.builds("{}@{}".format, _NAMES, _NAMES),
    folder=st.none() | _PATHS, python=st.none() | _PATHS, label=st.none() | _PATHS,
    via=st.just(()) | st.lists(_PATHS, min_size=1, max_size=3).map(tuple))


def written(text: str) -> None:
    hosts.path().parent.mkdir(parents=True, exist_ok=True)
    hosts.path().write_text(text)


def test_none_where_there_is_no_file(home):
    assert hosts.read() == {}
    assert hosts.find("gpu1") == Host("gpu1")
    assert hosts.find("alice@gpu2") == Host("alice@gpu2")


def test_read_and_found(home):
    written('[hosts.gpu1]\nssh = "alice@10.0.0.7"\nfolder = "~/p"\npython = "/v/bin/python"\n'
            'label = "left"\n[hosts."bob@gpu2"]\n[hosts.box]\nvia = ["docker", "exec", "b"]\n')
    first = Host("gpu1", "alice@10.0.0.7", "~/p", "/v/bin/python", "left")
    assert list(hosts.read().values()) == [
        first, Host("bob@gpu2"), Host("box", via=("docker", "exec", "b"))]
    assert hosts.find("gpu1") == first


@pytest.mark.parametrize(("text", "says"), [
    ("[hosts", "not valid TOML"),
    ("hosts = 3", "hosts = 3: expected a table a host"),
    ("[gpu1]", "gpu1 = {}: a host is a table as [hosts.gpu1]"),
    ("[hosts.a]\n[[host]]\nname = 'b'", "host = [{'name': 'b'}]: a host is a table"),
    ("[hosts]\ngpu1 = 3", "hosts.gpu1 = 3: expected a table"),
    ('[hosts."a b"]', "'a b' is no name of a host"),
    ('[hosts."-oProxyCommand=x"]', "is no name of a host"),
    ("[hosts.local]", "hosts.local: this machine is called that"),
    ('[hosts.g]\nshh = "a"', 'hosts.g.shh = "a": no such key; did you mean ssh?'),
    ('[hosts.g]\nport = 22', "hosts.g.port = 22: no such key; there are ssh, folder"),
    ('[hosts.g]\nssh = "a;touch x"', 'hosts.g.ssh = "a;touch x": expected what ssh is given'),
    ('[hosts.g]\nssh = "-oProxyCommand=x"', "expected what ssh is given"),
    ('[hosts.g]\nssh = "a\\nb"', "expected what ssh is given"),
    ("[hosts.g]\nssh = 3", "hosts.g.ssh = 3: expected what ssh is given"),
    ('[hosts.g]\nfolder = "work"', 'hosts.g.folder = "work": expected a whole path'),
    ('[hosts.g]\npython = "/a\\u001b[2J"', "expected a whole path"),
    ('[hosts.g]\nlabel = ""', "expected a text in quotes"),
    (f'[hosts.g]\nlabel = "{"x" * 81}"', "at most 80 characters"),
    ('[hosts.g]\nvia = "docker"', "expected the words of a command"),
    ("[hosts.g]\nvia = []", "expected the words of a command"),
])
def test_a_mistake_names_file_key_and_value(home, text, says):
    written(text)
    with pytest.raises(UserError) as err:
        hosts.read()
    assert says in str(err.value)
    assert str(err.value).startswith(str(hosts.path()))
    assert str(err.value).isprintable()
    with pytest.raises(UserError):
        hosts.add(Host("other"))
    assert hosts.path().read_text() == text, "a file that is wrong is not written over"


def test_what_cannot_be_read_is_said_and_never_waited_for(home):
    hosts.path().parent.mkdir(parents=True)
    os.mkfifo(hosts.path())
    with pytest.raises(UserError, match="it is a FIFO"):
        hosts.read()
    hosts.path().unlink()
    hosts.path().write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read"):
        hosts.read()
    written("# " + "x" * (16 << 20))
    with pytest.raises(UserError, match="larger than 1 MiB"):
        hosts.read()


@settings(max_examples=30)
@given(told=st.lists(_HOSTS, max_size=4, unique_by=lambda host: host.name))
def test_what_is_added_is_what_is_read(told, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_PANEL_HOME", str(tmp_path_factory.mktemp("home")))
        for host in told:
            hosts.add(host)
        assert hosts.read() == {host.name: host for host in told}
        for host in told:
            hosts.add(Host(host.name))
        assert hosts.read() == {host.name: Host(host.name) for host in told}
        for host in told:
            hosts.remove(host.name)
        assert hosts.read() == {}


def test_comments_and_what_else_stands_there_stay(home):
    written('# mine\n[hosts.gpu1] # old\nssh = "a" # the one\nlabel = "x"\n\n[hosts.gpu2]\n')
    hosts.add(Host("gpu1", ssh="b", folder="/f"))
    text = hosts.path().read_text()
    assert "# mine" in text
    assert '# old\nssh = "b" # the one' in text
    assert "label" not in text
    assert hosts.read() == {"gpu1": Host("gpu1", ssh="b", folder="/f"), "gpu2": Host("gpu2")}
    hosts.remove("gpu2")
    assert "# mine" in hosts.path().read_text()
    with pytest.raises(UserError, match="has no host 'gpu'; did you mean gpu1"):
        hosts.remove("gpu")


def test_what_may_not_stand_there_is_not_added(home):
    for bad in (Host("local"), Host("a b"), Host("g", ssh="-x"), Host("g", folder="rel")):
        with pytest.raises(UserError):
            hosts.add(bad)
    assert not hosts.path().exists()
