"""What a bubblewrap box shows: the mounts, masks and variables of a `BoxSpec` as arguments of `bwrap`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from leadscrew.adapters.sandboxes import seccomp
from leadscrew.adapters.sandboxes.packages import Packages, find_packages
from leadscrew.adapters.sandboxes.runtime import Runtime, prepare
from leadscrew.errors import InfrastructureError
from leadscrew.ports import BoxSpec

GUEST = Path(__file__).resolve().parents[2] / "guest"
WORKER = "/guest/worker.py"

_DEVICES = ("null", "zero", "full", "random", "urandom")
_PROC_SHOWN = frozenset(
    "self thread-self mounts net cpuinfo meminfo stat uptime version loadavg filesystems devices swaps vmstat".split()
)
"""What of /proc beside its processes stays visible. The rest tells of the host or, to root, is a way out (/proc/sys)."""

_SHELL_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "localtime")


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything about a box that does not change from one to the next of its kind."""

    runtime: Runtime
    packages: Packages
    guest: str
    fixed: tuple[str, ...]
    shown: tuple[tuple[str, str], ...]
    """Host path and its place in the box, for masks and the scan for gold."""

    @staticmethod
    def key(spec: BoxSpec) -> tuple[object, ...]:
        """Return what boxes must have in common to share a layout."""
        return (spec.environment, spec.shell)

    def exposes(self, spec: BoxSpec) -> Sequence[str]:
        """Return the host paths whose content a box of this kind shows."""
        return [source for source, _ in self.shown] + [mount.source for mount in spec.mounts]

    def arguments(self, spec: BoxSpec, fds: list[int]) -> list[str]:
        """Return the arguments of `bwrap`; descriptors to pass on are appended to `fds` for the caller to close.

        They go through a descriptor, so that no host path can be read from /proc/1/cmdline in the box.
        """
        mounts = sorted(spec.mounts, key=lambda m: m.target.count("/"))
        for mount in mounts:
            if not os.path.exists(mount.source):
                raise InfrastructureError(f"{mount.source!r} was to be mounted into a box at {mount.target!r} but is missing.")
        taken = {mount.target.rstrip("/") for mount in mounts}
        out = list(self.fixed)
        size = str(spec.limits.workspace_mb << 20)
        for folder in ("/tmp", "/work"):
            if folder not in taken:
                out += ["--size", size, "--tmpfs", folder]
        for mount in mounts:
            out += ["--bind" if mount.writable else "--ro-bind", mount.source, mount.target]
        shown = [*self.shown, *((os.path.realpath(m.source), m.target) for m in mounts)]
        out += self._masks(spec.masks, shown)
        for name, value in (self._environment(spec) | dict(spec.env)).items():
            out += ["--setenv", name, value]
        filter_ = seccomp.program()
        if filter_ is not None:
            fds.append(_memory_file("filter", filter_))
            out += ["--seccomp", str(fds[-1])]
        out += ["--remount-ro", "/", "--chdir", spec.cwd]
        fds.append(_memory_file("arguments", b"".join(os.fsencode(word) + b"\0" for word in out)))
        return ["--args", str(fds[-1]), "--", *(spec.argv or self.worker())]

    def worker(self) -> tuple[str, ...]:
        """Return the command of the guest worker. Not `-I`: that would ignore PYTHONHASHSEED; the environment is ours."""
        return (f"/py/{self.runtime.python}", "-s", "-P", WORKER)

    def _environment(self, spec: BoxSpec) -> dict[str, str]:
        libraries = ["/py/own" if spec.shell else "/py/lib", *self.packages.library_folders]
        out = {
            "PATH": "/py/bin:/usr/local/bin:/usr/bin:/bin" if spec.shell else "/py/bin",
            "HOME": "/work",
            "TMPDIR": "/tmp",
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "LD_LIBRARY_PATH": ":".join(libraries),
        }
        if self.packages.mounts:
            out["PYTHONPATH"] = "/site"
        return out

    def _masks(self, masks: Iterable[str], shown: Sequence[tuple[str, str]]) -> list[str]:
        out: list[str] = []
        empty = str(self.runtime.folder / "empty")
        for mask in masks:
            hidden = os.path.realpath(mask)
            for source, target in shown:
                source = os.path.realpath(source)
                inside = hidden == source or hidden.startswith(source.rstrip("/") + "/")
                around = source.startswith(hidden.rstrip("/") + "/")
                if not (inside or around) or (around and target in ("/py", "/guest")):
                    continue
                place = target if around else (target.rstrip("/") + hidden[len(source.rstrip("/")) :]).rstrip("/")
                if around or os.path.isdir(hidden):
                    out += ["--ro-bind", empty if os.path.isdir(source if around else hidden) else "/dev/null", place]
                elif os.path.exists(hidden):
                    out += ["--ro-bind", "/dev/null", place]
        return out


def lay_out(spec: BoxSpec, cache: Path | None = None) -> Layout:
    """Prepare the runtime and packages of a kind of box and work out its fixed arguments."""
    runtime = prepare(spec.environment.interpreter, cache)
    packages = find_packages(spec.environment, runtime, cache)
    shown = [(str(runtime.folder), "/py"), (str(GUEST), "/guest"), *packages.mounts]
    out = (
        "--unshare-all --unshare-user --disable-userns --uid 1000 --gid 1000 --hostname box "
        "--die-with-parent --new-session --cap-drop ALL --clearenv"
    ).split()
    if spec.shell:
        tools = _shell(runtime)
        shown.append(("/usr", "/usr"))
        out += tools
    for source, target in shown:
        if target != "/usr":
            out += ["--ro-bind", source, target]
    if not spec.shell:
        out += ["--symlink", "py/lib", os.path.dirname(runtime.loader) or "/lib64"]
    out += ["--proc", "/proc", *_covers(runtime)]
    out += ["--tmpfs", "/dev"]
    for device in (*_DEVICES, *(("tty",) if spec.shell else ())):
        out += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for name, target in (("fd", "self/fd"), ("stdin", "self/fd/0"), ("stdout", "self/fd/1"), ("stderr", "self/fd/2")):
        out += ["--symlink", f"/proc/{target}", f"/dev/{name}"]
    # Shared memory lives in /tmp: it has that size, and is reset with it between trials.
    out += ["--symlink", "/tmp", "/dev/shm", "--remount-ro", "/dev"]
    return Layout(runtime, packages, str(GUEST), tuple(out), tuple(shown))


def _covers(runtime: Runtime) -> list[str]:
    """Hide what of /proc is the host's: with `--proc` alone, root in a box could write /proc/sys of the host."""
    out = []
    for name in sorted(os.listdir("/proc")):
        if name.isdigit() or name in _PROC_SHOWN:
            continue
        path = f"/proc/{name}"
        if os.path.isdir(path):
            out += ["--ro-bind", str(runtime.folder / "empty"), path]
        elif not os.path.islink(path):
            out += ["--ro-bind", "/dev/null", path]
    return out


def _shell(runtime: Runtime) -> list[str]:
    """Mount the host's command-line tools, without its Python libraries."""
    out = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            out += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            out += ["--ro-bind", path, path]
    etc = runtime.folder / "etc"
    out += ["--ro-bind", str(etc / "passwd"), "/etc/passwd", "--ro-bind", str(etc / "group"), "/etc/group"]
    for name in _SHELL_ETC:
        out += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    libraries = {Path(runtime.host_stdlib), *Path("/usr/lib").glob("python3*"), *Path("/usr/local/lib").glob("python3*")}
    for folder in sorted(libraries):
        if folder.is_dir() and str(folder).startswith("/usr/"):
            out += ["--ro-bind", str(runtime.folder / "empty"), str(folder)]
    return out


def _memory_file(name: str, data: bytes) -> int:
    fd = os.memfd_create(name)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
