"""Which container a process on a GPU is in."""

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from gpu_engine.devices import containers
from gpu_engine.devices.host import Owners

ID = "3f2a81b0c4d5" + "e" * 52
SCOPE = "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + ID + ".scope/container"


@pytest.fixture
def proc(tmp_path):
    """A /proc with one process, 7."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "environ").write_bytes(b"PATH=/bin\0HOSTNAME=train-0\0")
    return tmp_path


@pytest.mark.parametrize(("group", "wanted"), [
    (f"0::/system.slice/docker-{ID}.scope\n", "docker 3f2a81b0c4d5"),
    (f"12:devices:/docker/{ID}\n0::/\n", "docker 3f2a81b0c4d5"),
    (f"0::{SCOPE}\n", "podman 3f2a81b0c4d5"),
    (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/"
     f"cri-containerd-{ID}.scope\n", "pod train-0"),
    (f"0::/kubepods/besteffort/pod12-34/{ID}\n", "pod train-0"),
    ("0::/lxc.payload.box/user.slice\n", "lxc box"),
    ("0::/user.slice/user-0.slice/session-2.scope\n", None),
    (f"0::/system.slice/{ID[:40]}.service\n", None),
])
def test_every_runtime_has_its_control_group(proc, group, wanted):
    (proc / "7" / "cgroup").write_text(group)
    assert containers.of_process(7, proc) == wanted
    assert containers.of_process(8, proc) is None


def test_a_pod_of_another_user_has_its_id(proc, monkeypatch):
    (proc / "7" / "cgroup").write_text(f"0::/kubepods/pod1/{ID}\n")
    (proc / "7" / "environ").unlink()
    assert containers.of_process(7, proc) == "pod 3f2a81b0c4d5"


@pytest.mark.parametrize(("body", "wanted"), [
    (json.dumps({"Name": "/trainer"}), "podman trainer"), ("[]", "podman 3f2a81b0c4d5"),
    ("{", "podman 3f2a81b0c4d5")])
def test_the_runtime_is_asked_for_the_name_where_its_socket_is_open(
        proc, tmp_path, monkeypatch, body, wanted):
    asked: list[str] = []

    class Runtime(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *words: object) -> None:
            pass

        def address_string(self) -> str:
            return ""

    (tmp_path / "podman").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    containers._asked.cache_clear()
    (proc / "7" / "cgroup").write_text(f"0::{SCOPE}\n")
    with socketserver.UnixStreamServer(str(tmp_path / "podman" / "podman.sock"), Runtime) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert [containers.of_process(7, proc) for _ in range(2)] == [wanted] * 2
        server.shutdown()
    assert asked == [f"/containers/{ID}/json"]
    containers._asked.cache_clear()


def test_a_process_on_a_gpu_has_it(proc):
    (proc / "7" / "cgroup").write_text(f"0::/system.slice/docker-{ID}.scope\n")
    (proc / "7" / "stat").write_text("7 (python) S 1" + " 0" * 48)
    (proc / "7" / "cmdline").write_bytes(b"python\0train.py\0")
    (proc / "stat").write_text("btime 100\n")
    process = Owners(proc).find(7)
    assert (process.command, process.container) == ("python train.py", "docker 3f2a81b0c4d5")
