"""First on PYTHONPATH of a person's own command: lets gpu-panel see its ranks.

Python imports a module of this name at its start. This one does four things and is gone: in a
process that the supervisor started as a rank it notes that the rank has begun; below our own
torchrun it sends what the rank prints to the rank's log; it waits for torch, if that is ever imported, and hands over to
`observe/install.py`; it leaves the stage to
the person's own sitecustomize. Nothing stays on sys.path or in sys.modules.

It imports nothing that Python has not loaded by now: a `queue.py` beside somebody's script must
go on winning over the standard library's. Any Python may run this, so the syntax is old, and
whatever goes wrong here is noted in the run folder and never reaches the program.
"""

# ruff: noqa
import os
import sys
import time

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_FOLDER))
_NAME = "_gpu_panel"  # ours inside somebody else's process: a name that nobody uses


def _note(where, err):
    try:
        path = os.path.join(os.environ["GPU_PANEL_RUN"], "observe-errors.log")
        with open(path, "a") as file:
            file.write("%d %s: %s: %s\n" % (os.getpid(), where, type(err).__name__, err))
    except Exception:  # there is nowhere left to say it
        pass


def _direct():
    """Whether the supervisor itself started this process, as one rank."""
    return os.environ.get("GPU_PANEL_DIRECT") == str(os.getppid())


def _text(value):
    return '"%s"' % "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in value)


def _begin():
    """The rank's first two events, written by hand: json is not loaded yet."""
    env = os.environ
    rank = int(env.get("RANK") or env["GPU_PANEL_RANK"])
    with open("/proc/self/stat") as stat:
        ticks = stat.read().rpartition(")")[2].split()[19]
    now = "%.3f" % time.time()
    labels = ",".join(_text(label) for label in env.get("GPU_PANEL_DEVICES", "").split(";"))
    line = ('{"t":%s,"kind":"start","rank":%d,"local_rank":%d,"node":%d,"pid":%d,"started":%s,'
            '"device":[%s],"world_size":%d,"attempt":%d}\n'
            '{"t":%s,"kind":"phase","phase":"init","since":%s,"step":0}\n' % (
                now, rank, int(env.get("LOCAL_RANK") or 0), int(env.get("GROUP_RANK") or 0),
                os.getpid(), ticks, labels, int(env.get("WORLD_SIZE") or 1),
                int(env.get("GPU_PANEL_ATTEMPT") or 1), now, now))
    path = os.path.join(env["GPU_PANEL_RUN"], "ranks", "%05d.jsonl" % rank)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size:
            line = "\n" + line  # whoever wrote before may have been killed within a line
        os.write(file, line.encode("ascii"))
    finally:
        os.close(file)


def _mark():
    """Note that a Python below the command has come this far: it is one, and not started with -S,
    whatever becomes of it."""
    path = os.path.join(os.environ["GPU_PANEL_RUN"], "python-seen")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError:  # a full disk: it is but a help to find words
        pass


def _own_log():
    """Below the torchrun that gpu-panel itself starts: print into the rank's log, which is kept
    small and is where the panel looks, and not into torchrun's two files."""
    run, rank = os.environ["GPU_PANEL_RUN"], os.environ.get("RANK", "")
    if not rank.isdigit():
        return
    for number in (1, 2):
        if not os.readlink("/proc/self/fd/%d" % number).startswith(run + "/torchrun/"):
            continue
        path = os.path.join(run, "ranks", "%05d.log" % int(rank))
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.dup2(file, number)
        os.close(file)


def _hand_over():
    """Load observe/install.py under our own name, and let it begin. torch is there."""
    if _NAME in sys.modules:
        return
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(_NAME, os.path.join(_PACKAGE, "__init__.py"),
                                   submodule_search_locations=[_PACKAGE])
    package = module_from_spec(spec)
    sys.modules[_NAME] = package
    spec.loader.exec_module(package)
    import_module(_NAME + ".observe.install").install(direct=_direct())


class _WaitForTorch(object):
    """On sys.meta_path until torch has been imported whole."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if find is None or isinstance(finder, _WaitForTorch):
                continue
            spec = find(name, path, target)
            if spec is not None:
                try:
                    _after(spec.loader)
                except Exception as err:
                    _note("waiting for torch", err)
                return spec
        return None


class _ForLog(object):
    """`import gpu_engine`, for `gpu_engine.log`, in an environment that has no gpu-panel: none
    but, perhaps, a folder of that name."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "gpu_engine":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if find is not None and not isinstance(finder, _ForLog):
                spec = find(name, path, target)
                if spec is not None and spec.loader is not None and spec.origin is not None:
                    return spec
        from importlib.util import spec_from_file_location

        return spec_from_file_location(name, os.path.join(_PACKAGE, "__init__.py"),
                                       submodule_search_locations=[_PACKAGE])


def _after(loader):
    """Have `loader` tell us when it has executed torch. The object stays the one it was, as
    programs look at a spec's loader."""
    execute = loader.exec_module

    def exec_module(module):
        execute(module)  # what it raises is the program's
        try:
            sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _WaitForTorch)]
            vars(loader).pop("exec_module", None)
            _hand_over()
        except Exception as err:
            _note("after torch", err)

    loader.exec_module = exec_module


def _install():
    if not os.environ.get("GPU_PANEL_RUN") or not os.environ.get("GPU_PANEL_RANK") \
            or sys.version_info < (3, 9) \
            or any(type(f).__name__ == "_WaitForTorch" for f in sys.meta_path):
        return
    _own_log()
    sys.meta_path.insert(-1, _ForLog())  # before the finder of paths, which takes mere folders
    if _direct():
        _begin()
    else:
        _mark()
    if "torch" in sys.modules:  # a .pth file was quicker
        _hand_over()
    else:
        sys.meta_path.insert(0, _WaitForTorch())


try:
    _install()
except Exception as _err:
    _note("at the start", _err)

# Off the stage: the program finds the path and the modules that it would find without us.
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _FOLDER]
sys.path_importer_cache.pop(_FOLDER, None)
del sys.modules["sitecustomize"]
# The person's own, if there is one; else `site` hears that there is none, and goes on.
import sitecustomize  # noqa: E402, F401
