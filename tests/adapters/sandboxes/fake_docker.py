"""A stand-in for the `docker` command: containers are bubblewrap boxes, the daemon is a folder.

It refuses every option it does not know, so that what the backend asks for is checked word by word.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["DOCKER_FAKE_STATE"])
IMAGES = {"leadscrew-empty"}
FLAGS = {"--interactive", "--init", "--read-only"}
VALUES = {
    "--name", "--label", "--pull", "--network", "--cap-drop", "--security-opt", "--user", "--hostname", "--ipc",
    "--shm-size", "--pids-limit", "--memory", "--memory-swap", "--ulimit", "--tmpfs", "--volume", "--env", "--workdir",
    "--entrypoint",
}  # fmt: skip


def run(words: list) -> int:
    options: dict = {}
    flags = set()
    while words and words[0].startswith("--"):
        option = words.pop(0)
        if option in FLAGS:
            flags.add(option)
        elif option in VALUES:
            options.setdefault(option, []).append(words.pop(0))
        else:
            print(f"unknown flag: {option}", file=sys.stderr)
            return 125
    image, arguments = words[0], words[1:]
    name = options["--name"][0]
    STATE.mkdir(parents=True, exist_ok=True)
    (STATE / name).write_text(json.dumps({"flags": sorted(flags), "options": options, "image": image}))
    with (STATE / "log").open("a") as log:
        log.write(json.dumps({"flags": sorted(flags), "options": options, "image": image, "argv": arguments}) + "\n")
    argv = [
        os.environ["DOCKER_FAKE_BWRAP"],
        "--unshare-all",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--clearenv",
        "--cap-drop",
        "ALL",
    ]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    if options["--network"] != ["none"]:
        argv += ["--share-net"]
    for word in options.get("--tmpfs", []):
        argv += ["--tmpfs", word.split(":")[0]]
    for word in options.get("--volume", []):
        source, target, mode = word.split(":")
        argv += ["--ro-bind" if mode == "ro" else "--bind", source, target]
    for word in options.get("--env", []):
        argv += ["--setenv", *word.split("=", 1)]
    if "--read-only" in flags:
        argv += ["--remount-ro", "/"]
    argv += ["--chdir", options["--workdir"][0], options["--entrypoint"][0], *arguments]
    box = subprocess.Popen(argv, start_new_session=True)
    (STATE / f"{name}.pid").write_text(str(box.pid))
    code = box.wait()
    # A daemon keeps the container after its end, and a client returns the code of a shell.
    return 128 - code if code < 0 else code


def remove(name: str) -> int:
    pid = STATE / f"{name}.pid"
    for _ in range(100):
        if pid.exists() or not (STATE / name).exists():
            break
        time.sleep(0.01)
    if pid.exists():
        number = pid.read_text()
        for child in Path(f"/proc/{number}/task/{number}/children").read_text().split() if alive(number) else []:
            kill(int(child))
        kill(int(number))
        while alive(number):
            time.sleep(0.005)
        pid.unlink()
    (STATE / name).unlink(missing_ok=True)
    return 0


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main(words: list) -> int:
    command = words.pop(0)
    if command == "version":
        print("27.0-fake")
        return 0
    if command == "image":
        return 0 if words[1] in IMAGES else 1
    if command == "run":
        return run(words)
    if command == "rm":
        return remove(words[1])
    if command == "inspect":
        print("true" if (STATE / "oom").exists() else "false")
        return 0
    if command == "ps":
        for path in sorted(STATE.glob("leadscrew-*")) if STATE.exists() else []:
            if path.suffix != ".pid":
                label = json.loads(path.read_text())["options"]["--label"][0]
                print(path.name, label.split("=")[1])
        return 0
    print(f"unknown command: {command}", file=sys.stderr)
    return 125


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
