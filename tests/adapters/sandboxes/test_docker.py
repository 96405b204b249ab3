"""What the Docker backend asks of the `docker` command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from leadscrew.adapters.sandboxes.docker import IMAGE, DockerSandbox
from leadscrew.core.task import Limits
from leadscrew.core.trial import Outcome
from leadscrew.errors import InfrastructureError, SandboxUnavailable
from leadscrew.ports import BoxSpec, Mount
from leadscrew.testing.sandbox import finish, spec


def asked(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "daemon" / "log").read_text().splitlines()]


async def test_a_box_is_asked_for_with_every_wall(fake_docker, tmp_path):
    (tmp_path / "program").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "program" / "gold").write_text("42")
    sandbox = DockerSandbox(client=str(fake_docker))
    mounts = (Mount(str(tmp_path / "program"), "/program"), Mount(str(tmp_path / "out"), "/out", writable=True))
    limits = Limits(memory_mb=100, workspace_mb=28, processes=10, file_mb=3, cpu_s=2, load_s=3)
    box = await sandbox.open(
        spec(
            "print(repr(open('/program/gold').read()))",
            mounts=mounts,
            limits=limits,
            env={"A": "b"},
            masks=(str(tmp_path / "program" / "gold"),),
        )
    )
    assert await finish(box) == (0, "''\n", "")
    await sandbox.close()
    (run,) = asked(tmp_path)
    options = run["options"]
    assert run["image"] == IMAGE
    assert run["flags"] == ["--init", "--interactive", "--read-only"]
    for option, value in {
        "--network": "none", "--cap-drop": "ALL", "--security-opt": "no-new-privileges", "--user": "1000:1000",
        "--pids-limit": "13", "--memory": "128m", "--memory-swap": "128m", "--pull": "never", "--ipc": "private",
        "--workdir": "/work", "--entrypoint": "/py/bin/python3", "--label": f"leadscrew.engine={os.getpid()}",
    }.items():  # fmt: skip
        assert options[option] == [value]
    assert options["--ulimit"] == ["core=0", f"fsize={3 << 20}", "cpu=5"]
    assert [word.split(":")[0] for word in options["--tmpfs"]] == ["/tmp", "/work"]
    assert all("size=28m" in word for word in options["--tmpfs"])
    modes = {word.split(":")[1]: word.split(":")[2] for word in options["--volume"]}
    assert {target for target, mode in modes.items() if mode == "rw"} == {"/out"}
    assert {"/py", "/guest", "/program", "/out", "/program/gold"} <= set(modes)
    assert "A=b" in options["--env"]
    assert not any("PATH=" in word and "/py/bin" not in word for word in options["--env"] if word.startswith("PATH"))
    assert not list((tmp_path / "daemon").glob("leadscrew-*")), "the container was removed"


async def test_a_container_killed_for_memory_is_oom(fake_docker, tmp_path):
    sandbox = DockerSandbox(client=str(fake_docker))
    box = await sandbox.open(spec("import os, sys; sys.stdin.read(); os.kill(os.getpid(), 9)"))
    (tmp_path / "daemon").mkdir(exist_ok=True)
    (tmp_path / "daemon" / "oom").touch()
    box.stdin.close()
    assert await box.wait() == -9
    assert box.breach() is Outcome.OOM
    await sandbox.close()


def test_probe_refuses_with_the_remedy(fake_docker, tmp_path):
    with pytest.raises(SandboxUnavailable, match="install Docker or Podman"):
        DockerSandbox(client=str(tmp_path / "nothing")).probe()
    with pytest.raises(SandboxUnavailable, match=r"no image 'mine'.*docker import - leadscrew-empty"):
        DockerSandbox("mine", client=str(fake_docker)).probe()
    dead = tmp_path / "dead"
    dead.write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2; exit 1\n")
    dead.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match=r"daemon does not answer: Cannot connect.*group `docker`"):
        DockerSandbox(client=str(dead)).probe()


def test_probe_removes_what_a_killed_engine_left(fake_docker, tmp_path):
    daemon = tmp_path / "daemon"
    daemon.mkdir()
    for name, pid in (("leadscrew-a", 4194999), ("leadscrew-b", os.getpid())):
        (daemon / name).write_text(json.dumps({"options": {"--label": [f"leadscrew.engine={pid}"]}}))
        (daemon / f"{name}.pid").write_text("4194999")
    report = DockerSandbox(client=str(fake_docker)).probe()
    assert report.version == "27.0-fake"
    assert not (daemon / "leadscrew-a").exists()
    assert (daemon / "leadscrew-b").exists()


async def test_a_shell_box_needs_an_image_with_a_shell(fake_docker):
    with pytest.raises(InfrastructureError, match="empty"):
        await DockerSandbox(client=str(fake_docker)).open(BoxSpec("propose", Limits(), argv=("/bin/sh",), shell=True))
