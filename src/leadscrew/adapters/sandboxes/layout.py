"""What a bubblewrap box shows: the mounts, masks and variables of a `BoxSpec` as arguments of `bwrap`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from leadscrew.adapters.sandboxes import seccomp
from leadscrew.adapters.sandboxes.packages import Packages, find_packages
from leadscrew.adapters.sandboxes.runtime import Runtime, prepare
from leadscrew.errors import DomainError, InfrastructureError
from leadscrew.ports import BoxSpec

GUEST = Path(__file__).resolve().parents[2] / "guest"
WORKER = "/guest/worker.py"

_NAMESPACES = (
    "--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000", "--hostname", "box",
    "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom")
_PROC_SHOWN = frozenset(
    (
        "self",
        "thread-self",
        "mounts",
        "net",
        "cpuinfo",
        "meminfo",
        "stat",
        "uptime",
        "version",
        "loadavg",
        "filesystems",
    )
)
"""What of /proc beside its processes stays visible. The rest tells of the host or, to root, is a way out: /proc/sys."""

_SHELL_USR = (
    "bin", "sbin", "libexec", "lib32", "lib64", "libx32", "local/bin", "local/sbin", "include", "lib/*-linux-*", "lib/ld-*",
    "lib/git-core", "lib/gcc", "lib/locale", "lib/openssh", "lib/ssl", "share/awk", "share/ca-certificates", "share/file",
    "share/git-core", "share/i18n", "share/locale", "share/misc", "share/perl", "share/perl5", "share/terminfo",
    "share/zoneinfo",
)  # fmt: skip
"""What of /usr the usual tools need. The rest holds whole applications, some with a Python library of their own."""

_SHELL_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "localtime")

EVERYWHERE = {
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    # One processor per trial: workers make use of the others. Threads made while loading would cost a box per trial too.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Variables of every box of every sandbox."""


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
                raise InfrastructureError(
                    f"{mount.source!r} was to be mounted into a box at {mount.target!r}, but is missing."
                )
        taken = {mount.target.rstrip("/") for mount in mounts}
        out = list(self.fixed)
        if spec.init or not spec.argv:
            # Else bubblewrap's own first process would hold our pipes open to every program, at /proc/1/fd. The worker
            # closes its /proc folder, and as process 1 it cannot be killed from inside.
            out.append("--as-pid-1")
        size = str(spec.limits.workspace_mb << 20)
        for folder in ("/tmp", "/work"):
            if folder not in taken:
                out += ["--size", size, "--tmpfs", folder]
        for mount in mounts:
            out += ["--bind" if mount.writable else "--ro-bind", mount.source, mount.target]
        shown = [*self.shown, *((m.source, m.target) for m in mounts)]
        for source, target in self.masks(spec, shown):
            out += ["--ro-bind", source, target]
        for name, value in (self.environment(spec) | dict(spec.env)).items():
            out += ["--setenv", name, value]
        filter_ = seccomp.program()
        if filter_ is not None:
            fds.append(_memory_file("filter", filter_))
            out += ["--seccomp", str(fds[-1])]
        out += ["--remount-ro", "/", "--chdir", spec.cwd]
        fds.append(_memory_file("arguments", b"".join(os.fsencode(word) + b"\0" for word in out)))
        return ["--args", str(fds[-1]), "--", *(spec.argv or self.worker())]

    def worker(self) -> tuple[str, ...]:
        """Return the command of the guest worker. Not `-I`, which ignores PYTHONHASHSEED; all variables are ours."""
        return (f"/py/{self.runtime.python}", "-s", "-P", WORKER)

    def environment(self, spec: BoxSpec) -> dict[str, str]:
        """Return the fixed variables of a box. It sees these and `BoxSpec.env`, nothing of the host's."""
        libraries = ["/py/own" if spec.shell else "/py/lib", *self.packages.library_folders]
        out = {
            "PATH": "/py/bin:/usr/local/bin:/usr/bin:/bin" if spec.shell else "/py/bin",
            "HOME": "/work",
            "TMPDIR": "/tmp",
            **EVERYWHERE,
            "LD_LIBRARY_PATH": ":".join(libraries),
        }
        if self.packages.mounts:
            out["PYTHONPATH"] = "/site"
        return out

    def masks(self, spec: BoxSpec, shown: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return what to mount over what so that no mask of `spec` shows through `shown`: host path, place in the box.

        The runtime and packages that the environment names are shown even where they lie inside a masked folder, as a
        standard library's `site-packages` does: they are scanned. Any other mount inside a mask is a contradiction and
        raises `DomainError`.
        """
        out = []
        named = {target for _, target in self.shown}
        for mask in spec.masks:
            hidden = _real(mask)
            if not os.path.exists(hidden):
                continue
            cover = self.runtime.cover(os.path.isdir(hidden))
            for source, target in shown:
                source = _real(source).rstrip("/")
                if hidden == source or hidden.startswith(source + "/"):
                    out.append((cover, target.rstrip("/") + hidden[len(source) :]))
                elif source.startswith(hidden.rstrip("/") + "/") and target not in named:
                    raise DomainError(
                        f"the domain masks {mask!r}, because gold could be derived from it, but {source!r} inside it "
                        f"was to be mounted into a box at {target!r}. Keep runs and data apart, or mask less."
                    )
        return out


def lay_out(spec: BoxSpec, cache: Path | None = None) -> Layout:
    """Prepare the runtime and packages of a kind of box and work out its fixed arguments."""
    runtime = prepare(spec.environment.interpreter, cache)
    packages = find_packages(spec.environment, runtime, cache)
    shown = [(str(runtime.folder), "/py"), (str(GUEST), "/guest"), *packages.mounts]
    out = list(_NAMESPACES)
    if spec.shell:
        shown += [(str(path), str(path)) for name in _SHELL_USR for path in sorted(Path("/usr").glob(name))]
    for source, target in shown:
        out += ["--ro-bind", source, target]
    if spec.shell:
        out += _shell(runtime)
    if not spec.shell:
        out += ["--symlink", "py/lib", os.path.dirname(runtime.loader) or "/lib64"]
    out += ["--proc", "/proc", *_covers(runtime)]
    out += ["--tmpfs", "/dev"]
    for device in (*_DEVICES, *(("tty",) if spec.shell else ())):
        out += ["--dev-bind-try", f"/dev/{device}", f"/dev/{device}"]
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
        if not os.path.islink(path):
            out += ["--ro-bind", runtime.cover(os.path.isdir(path)), path]
    return out


def _shell(runtime: Runtime) -> list[str]:
    """Give the host's command-line tools their usual places and settings, and cover its Python libraries."""
    out = []
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
    places = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"))
    libraries = {Path(runtime.host_stdlib), *(found for place in places for found in place.glob("python3*"))}
    for folder in sorted(libraries):
        if folder.is_dir() and str(folder).startswith("/usr/"):
            out += ["--ro-bind", runtime.cover(folder=True), str(folder)]
    return out


@lru_cache(maxsize=4096)
def _real(path: str) -> str:
    return os.path.realpath(path)


def _memory_file(name: str, data: bytes) -> int:
    fd = os.memfd_create(name)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
