"""Why a box cannot run on this host, and what to do about it."""

from __future__ import annotations

import contextlib
from pathlib import Path

_SWITCHES = {
    "/proc/sys/kernel/unprivileged_userns_clone": (
        "0",
        "the kernel forbids user namespaces to ordinary users: `sysctl -w kernel.unprivileged_userns_clone=1`",
    ),
    "/proc/sys/user/max_user_namespaces": (
        "0",
        "the kernel allows no user namespaces: `sysctl -w user.max_user_namespaces=10000`",
    ),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "AppArmor forbids user namespaces (Ubuntu 23.10 and later): `apt install bubblewrap apparmor-profiles` with "
        "the profile bwrap-userns-restrict enabled, or `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`",
    ),
}


def in_container() -> bool:
    """Say whether this looks like the inside of a container."""
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return True
    with contextlib.suppress(OSError):
        return any(word in Path("/proc/1/cgroup").read_text() for word in ("docker", "kubepods", "containerd", "lxc"))
    return False


def explain(message: str, code: int) -> str:
    """Return the text of a `SandboxUnavailable`: what was tried, what came back, and the likely remedies."""
    last = (message.splitlines() or ["no message"])[-1]
    remedies = []
    for path, (value, remedy) in _SWITCHES.items():
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == value:
                remedies.append(remedy)
    if in_container():
        remedies.append(
            "this is a container, whose seccomp profile may forbid namespaces: start it with `--security-opt "
            "seccomp=unconfined --security-opt systempaths=unconfined` (Docker) or loosen the pod's security context"
        )
    if not remedies:
        remedies.append(
            "allow user namespaces to this user (sysctl kernel.unprivileged_userns_clone=1, and "
            "kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu), or use another machine"
        )
    remedies.append("or, for programs you trust, ask for `none` by name: nothing is then isolated")
    remedy = "; ".join(remedies)
    return f"no sandbox can run here: a first box ended with code {code} and said {last!r}. Remedy: {remedy}."
