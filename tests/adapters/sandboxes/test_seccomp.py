"""The filter, run by a small interpreter of its own: what it answers for which call on which processor."""

from __future__ import annotations

import struct

import pytest

from leadscrew.adapters.sandboxes import seccomp

ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def answer(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """Run the filter as the kernel would."""
    program = seccomp.program(machine)
    assert program is not None
    data = struct.pack("<iIQ6Q", number, arch or AUDIT[machine], 0, *(list(arguments) + [0] * 6)[:6])
    lines = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    value, at = 0, 0
    while True:
        operation, yes, no, operand = lines[at]
        at += 1
        if operation == 0x20:
            value = struct.unpack_from("<I", data, operand)[0]
        elif operation == 0x54:
            value &= operand
        elif operation == 0x15:
            at += yes if value == operand else no
        elif operation == 0x35:
            at += yes if value >= operand else no
        else:
            assert operation == 0x06
            return operand


@pytest.mark.parametrize("machine", list(AUDIT))
def test_every_denied_call_answers_eperm(machine):
    denied = seccomp.denied(machine)
    assert len(denied) > 60
    assert len(set(denied.values())) == len(denied)
    assert {answer(machine, number) for number in denied.values()} == {EPERM}


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        ("x86_64", {"read": 0, "mmap": 9, "execve": 59, "fork": 57, "connect": 42, "flock": 73, "futex": 202}),
        ("aarch64", {"read": 63, "mmap": 222, "execve": 221, "connect": 203, "flock": 32, "futex": 98}),
    ],
)
def test_ordinary_calls_pass(machine, numbers):
    assert {name: answer(machine, number) for name, number in numbers.items()} == dict.fromkeys(numbers, ALLOW)


@pytest.mark.parametrize(("machine", "call"), [("x86_64", 41), ("x86_64", 53), ("aarch64", 198), ("aarch64", 199)])
def test_socket_families(machine, call):
    allowed = {family for family in range(64) if answer(machine, call, family) == ALLOW}
    assert allowed == {1, 2, 10}
    # The kernel reads the family as an int: high bits of the register do not get past the filter.
    assert answer(machine, call, 16 | 1 << 32) == EPERM


@pytest.mark.parametrize(("machine", "clone"), [("x86_64", 56), ("aarch64", 220)])
def test_clone_makes_threads_but_no_namespaces(machine, clone):
    assert answer(machine, clone, 0x3D0F00) == ALLOW
    assert answer(machine, clone, 17) == ALLOW
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(machine, clone, 17 | flag) == EPERM
    assert answer(machine, 435) == ENOSYS


@pytest.mark.parametrize(("machine", "ioctl"), [("x86_64", 16), ("aarch64", 29)])
def test_terminals_cannot_be_typed_into(machine, ioctl):
    assert answer(machine, ioctl, 0, 0x5412) == EPERM
    assert answer(machine, ioctl, 0, 0x541C) == EPERM
    assert answer(machine, ioctl, 0, 0x5413) == ALLOW


def test_the_tables_of_other_architectures_are_closed():
    assert answer("x86_64", 0, arch=0x40000003) == EPERM
    assert answer("aarch64", 63, arch=0x40000028) == EPERM
    assert answer("x86_64", 0x40000000 | 39) == EPERM


def test_an_unknown_processor_has_no_filter():
    assert seccomp.program("riscv64") is None
    assert seccomp.denied("riscv64") == {}
