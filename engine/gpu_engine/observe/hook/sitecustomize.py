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
    try:
        with open("/proc/self/stat") as stat:
            ticks = stat.read().rpartition(")")[2].split()[19]
    except OSError:  # macOS
        ticks = "null"
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


def _mark():
    """Note that some process of the command is a Python that runs this hook. Python started with
    -S does not."""
    try:
        os.close(_open("python-seen"))
    except OSError:  # a full disk; the mark only helps to explain a missing rank
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


class _NoCollection(object):
    """Keeps the garbage collector away from torch, while it is imported and afterwards.

    Its hundreds of thousands of objects live as long as the process. Searching them for garbage
    takes a tenth of the time of the import, a tenth of a second at each full collection and half a
    second at the end of the process. `gc.freeze` sets aside everything that there is, also what the
    program made before. So this leaves the collector alone if the program uses it in its own way,
    and freezes nothing while a file is open for writing: one that is part of a cycle is written
    out only when it is collected.
    """

    frozen = 0
    """How many objects Python itself has set aside when it starts, as 3.12 does."""

    @classmethod
    def begin(cls):
        loaded = "gc" in sys.modules
        import gc  # it is built into Python

        cls.frozen = gc.get_freeze_count()
        if not loaded:
            del sys.modules["gc"]  # a program without torch finds sys.modules as it is without us

    def __enter__(self):
        self._off = self._freeze = False
        try:
            import gc

            if gc.isenabled() and not gc.get_debug() and not gc.callbacks \
                    and gc.get_freeze_count() <= self.frozen:
                self._freeze = not _writes_a_file(gc.get_objects())
                gc.disable()
                self._off = True
        except Exception as err:
            _note("before torch", err)

    def __exit__(self, kind, *error):
        if self._off:
            import gc

            if self._freeze and kind is None:
                gc.freeze()
            gc.enable()


def _writes_a_file(objects):
    """Whether one of `objects` is an open file, other than stdout and stderr, that can be written.
    Runs no code of the program: it asks for types alone, and calls what is written in C."""
    from _io import FileIO

    for each in objects:
        if issubclass(type(each), FileIO):
            try:
                if FileIO.fileno(each) > 2 and FileIO.writable(each):
                    return True
            except ValueError:  # it is closed
                pass
    return False


class _ForLog(object):
    """Makes `import gpu_engine` work, for `gpu_engine.log`, in an environment without gpu-panel,
    even if there is an unrelated folder of that name."""

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
    """Have `loader` call us when it has executed torch. The loader object is not replaced, as
    programs may look at it."""
    execute = loader.exec_module

    def exec_module(module):
        with _NoCollection():
            execute(module)  # an error in here is the program's own
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
    sys.meta_path.insert(-1, _ForLog())  # before the finder for sys.path, which accepts any folder
    if _direct():
        _begin()
    else:
        _mark()
    if "torch" in sys.modules:  # a .pth file has imported it already
        _hand_over()
    else:
        sys.meta_path.insert(0, _WaitForTorch())
        _NoCollection.begin()


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
