"""A small seccomp filter that takes away system calls no program in a box needs; each answers EPERM.

It closes what namespaces leave open: keys and System V or POSIX message objects that outlive a trial, ptrace and reads
of other processes, kernel interfaces with a history of escapes, new namespaces and mounts, and every socket family but
unix and IP. Calls by the tables of other architectures answer EPERM too; `clone3` answers ENOSYS, so that the C library
falls back to `clone`, whose flags can be checked.
"""

from __future__ import annotations

import platform
import struct

EPERM, ENOSYS = 1, 38

_BOTH = {
    # name: (x86_64, aarch64)
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183), "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162), "syslog": (103, 116),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18), "vhangup": (153, 58), "move_pages": (279, 239), "migrate_pages": (256, 238),
}  # fmt: skip
_X86_ONLY = {"iopl": 172, "ioperm": 173, "modify_ldt": 154, "uselib": 134, "_sysctl": 156, "create_module": 174}

_ARCHITECTURES = {
    # machine: (AUDIT_ARCH, column, socket, socketpair, clone, clone3, ioctl)
    "x86_64": (0xC000003E, 0, 41, 53, 56, 435, 16),
    "aarch64": (0xC00000B7, 1, 198, 199, 220, 435, 29),
}
_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6. IP reaches only the box's own loopback."""
_NEW_NAMESPACES = 0x7E020000
_TERMINAL_INJECTION = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX."""

_LOAD, _EQUAL, _ATLEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in `struct seccomp_data`; both architectures are little-endian, so these are low words of arguments."""


def denied(machine: str = "") -> dict[str, int]:
    """Return the names and numbers of the calls that are denied outright; empty where no filter is known."""
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        return {}
    column = _ARCHITECTURES[machine][1]
    return {name: pair[column] for name, pair in _BOTH.items()} | (_X86_ONLY if machine == "x86_64" else {})


def program(machine: str = "") -> bytes | None:
    """Return the filter as the bytes that `bwrap --seccomp` reads, or None for an architecture without one."""
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        return None
    arch, _, socket, socketpair, clone, clone3, ioctl = _ARCHITECTURES[machine]
    code: list[tuple[int, int, int, int]] = []

    def add(operation: int, value: int, yes: int = 0, no: int = 0) -> None:
        code.append((operation, yes, no, value))

    def answer(error: int) -> None:
        add(_RETURN, _ERRNO | error)

    add(_LOAD, _ARCH)
    add(_EQUAL, arch, yes=1)
    answer(EPERM)
    add(_LOAD, _NUMBER)
    if machine == "x86_64":  # the x32 table has its own numbers for the same calls
        add(_ATLEAST, 0x40000000, no=1)
        answer(EPERM)
    for number in sorted(denied(machine).values()):
        add(_EQUAL, number, no=1)
        answer(EPERM)
    add(_EQUAL, clone3, no=1)
    answer(ENOSYS)
    for call in (socket, socketpair):
        add(_EQUAL, call, no=3 + len(_FAMILIES))
        add(_LOAD, _FIRST)
        for left, family in enumerate(reversed(_FAMILIES)):
            add(_EQUAL, family, yes=len(_FAMILIES) - left)
        answer(EPERM)
        add(_RETURN, _ALLOW)
    add(_EQUAL, clone, no=5)
    add(_LOAD, _FIRST)
    add(_AND, _NEW_NAMESPACES)
    add(_EQUAL, 0, yes=1)
    answer(EPERM)
    add(_RETURN, _ALLOW)
    add(_EQUAL, ioctl, no=5)
    add(_LOAD, _SECOND)
    add(_EQUAL, _TERMINAL_INJECTION[0], yes=1)
    add(_EQUAL, _TERMINAL_INJECTION[1], no=1)
    answer(EPERM)
    add(_RETURN, _ALLOW)
    add(_RETURN, _ALLOW)
    return b"".join(struct.pack("<HBBI", *line) for line in code)
