"""Lets gpu-panel see the ranks of a person's own command. Its folder is first on PYTHONPATH.

Python imports a module of this name when it starts. This one does the following, and leaves
nothing on sys.path or in sys.modules:

- If the supervisor itself started the process, as a rank, it records that the rank has begun.
- Under the torchrun that gpu-panel starts, it sends the rank's output to the rank's log.
- When torch is imported, if ever, it hands over to `observe/install.py`.
- It imports the person's own sitecustomize, if there is one.

It imports no module that Python has not loaded already: otherwise a `queue.py` next to a script
could no longer shadow the standard library's. Any version of Python may run this, so the syntax is
old. Errors in here are noted in the run folder and never reach the program.
"""

# ruff: noqa
import os
import sys
import time

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_FOLDER))
_NAME = "_gpu_panel"  # our package's name in other people's processes, where nobody else uses it


def _note(where, err):
    try:
        with os.fdopen(_open("observe-errors.log"), "a") as file:
            file.write("%d %s: %s: %s\n" % (os.getpid(), where, type(err).__name__, err))
    except Exception:  # there is nowhere left to report it
        pass


def _open(*names):
    """Open a file of the run folder for appending. As `common/files.py`, which is not loaded yet:
    through no link, and only a file of this user with one name."""
    path = os.path.join(os.environ["GPU_PANEL_RUN"], *names)
    if len(names) > 1 and os.path.islink(os.path.dirname(path)):
        raise OSError(path + " is in a link")
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                   | os.O_NONBLOCK, 0o600)
    found = os.fstat(file)
    if found.st_mode >> 12 != 8 or found.st_nlink > 1 or found.st_uid != os.geteuid():
        os.close(file)
        raise OSError(path + " is no file of this user alone")
    os.set_blocking(file, True)
    return file


def _direct():
    """Whether the supervisor itself started this process, as a rank."""
    return os.environ.get("GPU_PANEL_DIRECT") == str(os.getppid())


def _text(value):
    return '"%s"' % "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in value)


def _begin():
    """Write the rank's first two events, without json, which is not loaded yet."""
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
    file = _open("ranks", "%05d.jsonl" % rank)
    try:
        if os.fstat(file).st_size:
            line = "\n" + line  # an earlier writer may have been killed in the middle of a line
        os.write(file, line.encode("ascii"))
    finally:
        os.close(file)


def _mark(name):
    """Note by a file that some process of the command is a Python that runs this hook, which one
    started with -S does not, or that one imports torch."""
    try:
        os.close(_open(name))
    except OSError:  # a full disk; it only helps to say why no rank or no step is seen
        pass


def _own_log():
    """Under the torchrun that gpu-panel starts, send output to the rank's log, which the panel
    shows and keeps small, instead of torchrun's two files."""
    run, rank = os.environ["GPU_PANEL_RUN"], os.environ.get("RANK", "")
    if not rank.isdigit():
        return
    for number in (1, 2) if sys.platform.startswith("linux") else ():
        if not os.readlink("/proc/self/fd/%d" % number).startswith(run + "/torchrun/"):
            continue
        file = _open("ranks", "%05d.log" % int(rank))
        os.dup2(file, number)
        os.close(file)


def _hand_over():
    """Load observe/install.py under our private package name and run it. torch is imported."""
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
    """An entry on sys.meta_path until torch has been imported completely."""

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
    """The last entry on sys.meta_path: makes `import gpu_engine` work, for `gpu_engine.log`, in an
    environment without gpu-panel."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "gpu_engine":
            from importlib.util import spec_from_file_location

            return spec_from_file_location(name, os.path.join(_PACKAGE, "__init__.py"),
                                           submodule_search_locations=[_PACKAGE])
        return None


def _after(loader):
    """Have `loader` call us when it has executed torch. The loader object is not replaced, as
    programs may look at it."""
    execute = loader.exec_module

    def exec_module(module):
        _mark("torch-seen")
        try:
            execute(module)
        except BaseException as err:  # the program's own, whose traceback has no frame of ours
            err.__traceback__ = err.__traceback__.tb_next
            raise
        try:
            sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _WaitForTorch)]
            vars(loader).pop("exec_module", None)
            _hand_over()
        except Exception as err:
            _note("after torch", err)

    # Python leaves frames of this name out of tracebacks (before 3.11 `raise` puts ours back), and
    # passes over them where a warning counts frames.
    exec_module.__code__ = exec_module.__code__.replace(
        co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed")
    loader.exec_module = exec_module


def _install():
    if not os.environ.get("GPU_PANEL_RUN") or not os.environ.get("GPU_PANEL_RANK") \
            or sys.version_info < (3, 10) \
            or any(type(f).__name__ == "_WaitForTorch" for f in sys.meta_path):
        return
    _own_log()
    sys.meta_path.append(_ForLog())
    if _direct():
        _begin()
    else:
        _mark("python-seen")
    if "torch" in sys.modules:  # a .pth file has imported it already
        _mark("torch-seen")
        _hand_over()
    else:
        sys.meta_path.insert(0, _WaitForTorch())


try:
    _install()
except Exception as _err:
    _note("at the start", _err)

# Remove our traces: the program finds sys.path and sys.modules as they would be without us.
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _FOLDER]
sys.path_importer_cache.pop(_FOLDER, None)
del sys.modules["sitecustomize"]
# Import the person's own one. If there is none, this raises the ImportError that `site` expects.
import sitecustomize  # noqa: E402, F401
