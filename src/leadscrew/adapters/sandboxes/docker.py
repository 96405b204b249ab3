"""Boxes by Docker, behind the same port. It drives the `docker` command, so Podman's look-alike does as well.

The image should hold nothing: the prepared runtime is mounted into it. An empty one is made without a network by
``tar c --files-from /dev/null | docker import - leadscrew-empty``. This backend is tested against a stand-in for the
`docker` command that checks what it is asked; it was not run against a real daemon.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from leadscrew.adapters.sandboxes.bubblewrap import exit_code
from leadscrew.adapters.sandboxes.layout import GUEST, Layout, lay_out
from leadscrew.adapters.sandboxes.limits import describe_common
from leadscrew.adapters.sandboxes.process import ProcessBox
from leadscrew.core.task import Limits
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError, SandboxUnavailable
from leadscrew.ports import BoxSpec, SandboxReport

IMAGE = "leadscrew-empty"
_LABEL = "leadscrew.engine"
_SWEEP = '{{.Names}} {{.Label "leadscrew.engine"}}'
_count = itertools.count()
_TOKEN = secrets.token_hex(3)


class DockerSandbox:
    """Runs every box as a container of `image`. `client` is the command to drive, by default `docker`."""

    name = "docker"

    def __init__(self, image: str = "", client: str = "docker", cache: Path | None = None) -> None:
        self.image = image or IMAGE
        self._client = client
        self._cache = cache
        self._boxes: set[ProcessBox] = set()
        self._layouts: dict[tuple[object, ...], Layout] = {}

    def probe(self) -> SandboxReport:
        """Run a container for real; raises `SandboxUnavailable` with reason and remedy."""
        if shutil.which(self._client) is None:
            raise SandboxUnavailable(
                f"the sandbox `docker` was asked for, but there is no command {self._client!r}: install Docker or "
                "Podman, or write `bubblewrap`."
            )
        version = self._run("version", "--format", "{{.Server.Version}}")
        if version.returncode:
            raise SandboxUnavailable(
                f"the Docker daemon does not answer: {_last(version)}. Start it, add this user to the group `docker`, "
                "or write `bubblewrap`."
            )
        self._sweep()
        if self._run("image", "inspect", self.image).returncode:
            raise SandboxUnavailable(
                f"there is no image {self.image!r}. Make an empty one with `tar c --files-from /dev/null | "
                f"{self._client} import - {IMAGE}`, or name another; programs can read whatever it holds."
            )
        spec = BoxSpec("smoke", Limits(), argv=("/py/bin/python3", "-I", "-S", "-c", "print('ok')"))
        name = _name()
        done = self._run(*self._arguments(spec, name))
        self._run("rm", "--force", name)
        if done.returncode or done.stdout.strip() != "ok":
            raise SandboxUnavailable(
                f"a first container of {self.image!r} ended with code {done.returncode} and said {_last(done)!r}. "
                "The daemon must run on this machine, since folders of it are mounted."
            )
        limits = {
            "memory": "docker --memory: whole container with its workspace files",
            "processes": "docker --pids-limit: whole container",
            **describe_common("RLIMIT_CPU"),
            "cpu": "RLIMIT_CPU per process; CPU seconds of the whole container are not kept, wall time is",
            "workspace": "sized tmpfs for /work and /tmp",
            "network": "docker --network none",
            "system_calls": "the seccomp profile of the daemon",
        }
        warnings = ["a container outlives an engine that is killed; it is removed when the next run starts"]
        if self.image != IMAGE:
            warnings.append(f"what the image {self.image!r} holds was not scanned for gold")
        return SandboxReport(self.name, version.stdout.strip(), limits, True, tuple(warnings))

    async def open(self, spec: BoxSpec) -> ProcessBox:
        """Start a container."""
        if spec.shell and self.image == IMAGE:
            raise InfrastructureError(
                "a box with command-line tools was asked for, but the image for Docker is empty: name one with them."
            )
        key = Layout.key(spec)
        if key not in self._layouts:
            await asyncio.to_thread(self._layout, spec)
        name = _name()
        box = await ContainerBox.start(
            [self._client, *self._arguments(spec, name)],
            spec.limits,
            _Container(self._client, name),
            env=_client_environment(),
            codes=exit_code,
            cleanup=self._boxes.discard,
        )
        self._boxes.add(box)
        return box

    def exposes(self, spec: BoxSpec) -> Sequence[str]:
        """Return the host paths that a box of this kind would show, for the scan for gold."""
        shown = self._layout(spec).shown
        return [source for source, target in shown if not target.startswith("/usr")] + [m.source for m in spec.mounts]

    async def close(self) -> None:
        """Kill every box that is still open."""
        await asyncio.gather(*(box.kill() for box in tuple(self._boxes)))

    def _layout(self, spec: BoxSpec) -> Layout:
        key = Layout.key(spec)
        if key not in self._layouts:
            self._layouts[key] = lay_out(spec, self._cache)
        return self._layouts[key]

    def _arguments(self, spec: BoxSpec, name: str) -> list[str]:
        layout, limits = self._layout(spec), spec.limits
        memory = f"{limits.memory_mb + limits.workspace_mb}m"
        cpu = max(1, round(limits.load_s + limits.cpu_s))
        out = [
            "run", "--interactive", "--init", "--name", name, "--label", f"{_LABEL}={os.getpid()}", "--pull", "never",
            "--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
            "--user", "1000:1000", "--hostname", "box", "--ipc", "private", "--shm-size", "1m",
            "--pids-limit", str(limits.processes + 3), "--memory", memory, "--memory-swap", memory,
            "--ulimit", "core=0", "--ulimit", f"fsize={limits.file_mb << 20}", "--ulimit", f"cpu={cpu}",
        ]  # fmt: skip
        taken = {mount.target.rstrip("/") for mount in spec.mounts}
        for place in ("/tmp", "/work"):
            if place not in taken:
                out += ["--tmpfs", f"{place}:rw,exec,nosuid,nodev,size={limits.workspace_mb}m,mode=1777"]
        loader = os.path.dirname(layout.runtime.loader) or "/lib64"
        folder = str(layout.runtime.folder)
        own = [(f"{folder}/lib", loader), (folder, "/py"), (str(GUEST), "/guest")]
        for source, target in [*own, *layout.packages.mounts]:
            out += ["--volume", f"{source}:{target}:ro"]
        for mount in sorted(spec.mounts, key=lambda m: m.target.count("/")):
            if not os.path.exists(mount.source):
                raise InfrastructureError(
                    f"{mount.source!r} was to be mounted into a box at {mount.target!r}, but is missing."
                )
            out += ["--volume", f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}"]
        for source, target in layout.masks(
            spec, (*layout.packages.mounts, *((m.source, m.target) for m in spec.mounts))
        ):
            out += ["--volume", f"{source}:{target}:ro"]
        for key, value in (layout.environment(spec) | dict(spec.env)).items():
            out += ["--env", f"{key}={value}"]
        argv = spec.argv or layout.worker()
        return [*out, "--workdir", spec.cwd, "--entrypoint", argv[0], self.image, *argv[1:]]

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._client, *words], capture_output=True, text=True, timeout=120, check=False, env=_client_environment()
        )

    def _sweep(self) -> None:
        """Remove containers whose engine on this machine is gone."""
        done = self._run("ps", "--all", "--filter", f"label={_LABEL}", "--format", _SWEEP)
        for line in done.stdout.splitlines():
            name, _, pid = line.partition(" ")
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                self._run("rm", "--force", name)


class _Container:
    """The meter of a container: the daemon keeps its limits, and is asked how it ended."""

    enter: tuple[str, ...] = ()
    interval = 0.25
    by = "docker"

    def __init__(self, client: str, name: str) -> None:
        self.client, self.name = client, name
        self.oom = False

    def attach(self, pid: int) -> None:
        """Nothing to do: a container goes by its name."""

    def cpu_s(self) -> float:
        return 0.0

    def broken(self) -> Outcome | None:
        return Outcome.OOM if self.oom else None

    def alive(self) -> bool:
        return False

    def kill(self) -> None:
        """Nothing to do: the box removes its container."""

    def close(self) -> None:
        """Nothing is held."""


class ContainerBox(ProcessBox):
    """A box whose first process is the `docker` command, which stands for the container's."""

    _meter: _Container
    _removal: asyncio.Task[None] | None = None

    def _reap(self) -> None:
        super()._reap()
        if self._process.returncode == 137 and self._removal is None:
            done = subprocess.run(
                [self._meter.client, "inspect", "--format", "{{.State.OOMKilled}}", self._meter.name],
                capture_output=True, text=True, check=False, env=_client_environment(),
            )  # fmt: skip
            self._meter.oom = done.stdout.strip() == "true"

    def _strike(self) -> None:
        if self._removal is None:
            self._removal = self._loop.create_task(self._remove())

    async def _remove(self) -> None:
        remover = await asyncio.create_subprocess_exec(
            self._meter.client, "rm", "--force", self._meter.name,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_client_environment(),
        )  # fmt: skip
        code = await remover.wait()
        super()._strike()
        if code:
            raise InfrastructureError(
                f"the container {self._meter.name} could not be removed: `docker rm` gave {code}."
            )

    async def _vanish(self) -> None:
        assert self._removal is not None
        await self._removal


def _name() -> str:
    return f"leadscrew-{os.getpid()}-{_TOKEN}-{next(_count)}"


def _client_environment() -> dict[str, str]:
    """Return what the client needs to find its daemon; none of it enters the container."""
    return {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "XDG_RUNTIME_DIR") or k.startswith("DOCKER_")}


def _last(done: subprocess.CompletedProcess[str]) -> str:
    return ((done.stderr or done.stdout).strip().splitlines() or ["nothing"])[-1]
