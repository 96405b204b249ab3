"""The shell tool: it persists, it never hangs, and it says what happened. Each case is quick."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from templates.coder.coder_tree import part

shells = part("shell")
processes = part("processes")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Any]:
    shell = shells.Shell(str(tmp_path))
    yield shell
    shell.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a shell on a busy machine all the time it may need to come back to its prompt."""
    monkeypatch.setattr(part("bash"), "GRACE", 30)


OWN = f"{os.getpid():07d}"
"""Makes the sleeps of this run of the tests known from those of another one on the same machine."""


def running(word: str) -> list[int]:
    """Return the processes that have a word among their arguments."""
    found = []
    for pid in processes.all_pids():
        try:
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def gone(word: str) -> bool:
    """Whether such processes end, without being asked again; they were sent the signal already."""
    for _ in range(500):
        if not running(word):
            return True
        time.sleep(0.01)
    return False


def test_the_folder_stays(shell: Any) -> None:
    shell.run("cd /usr", 10)
    assert shell.run("pwd", 10).output == "/usr\n"
    assert shell.folder == "/usr"


def test_variables_functions_and_options_stay(shell: Any) -> None:
    shell.run("x=5; export y=6; f() { echo f$x$1; }; shopt -s globstar; set -- p q", 10)
    assert shell.run("f a; bash -c 'echo $y'; shopt -q globstar && echo on; echo $2", 10).output == "f5a\n6\non\nq\n"


def test_a_here_document(shell: Any, tmp_path: Path) -> None:
    done = shell.run("cat > a.txt <<'EOF'\nit's $x \"y\"\n\tz\nEOF", 10)
    assert (done.code, done.output) == (0, "")
    assert (tmp_path / "a.txt").read_text() == 'it\'s $x "y"\n\tz\n'


@pytest.mark.parametrize(
    "command", ["echo a\n", "echo a # why", "# why\necho a", "echo a;", "echo a &&\ntrue", "\n\necho a\n\n"]
)
def test_line_ends_and_comments(shell: Any, command: str) -> None:
    done = shell.run(command, 10)
    assert (done.code, done.output) == (0, "a\n")


def test_exit_is_reported_and_the_shell_starts_again(shell: Any) -> None:
    shell.run("cd /usr; x=5", 10)
    done = shell.run("echo before; exit 3", 10)
    assert done.code == 3
    assert done.output.startswith("before\n")
    assert "a new one was started in /usr" in done.note
    assert shell.run("pwd; echo [$x]", 10).output == "/usr\n[]\n"


@pytest.mark.parametrize("size", [100_000, 300_000])
def test_long_output(shell: Any, size: int) -> None:
    done = shell.run(f"head -c {size} /dev/zero | tr '\\0' x; echo; echo end", 10)
    assert done.code == 0
    assert done.output.count("x") == size
    assert done.output.endswith("\nend\n")


def test_endless_output_is_bounded_and_killed(shell: Any) -> None:
    done = shell.run("yes word", 0.3)
    assert done.code is None
    assert len(done.output) < 2 * part("bash").KEEP + 100
    assert (
        f"[... {3_000_000 - 2 * part('bash').KEEP} bytes left out ...]" in shell.run("yes | head -c 3000000", 30).output
    )
    assert shell.run("echo on", 10).output == "on\n"


def test_bash_says_nothing_of_itself(shell: Any) -> None:
    assert shell.run("sleep 60 & echo on", 10).output == "on\n"
    assert shell.run("yes | head -n 1; bash -c 'kill -9 $$'", 10).output == "y\n"
    assert shell.run("exit 3", 10).output == ""
    assert shell.run("nope", 10).output == "bash: nope: command not found\n"


def test_a_failing_command(shell: Any) -> None:
    assert shell.run("false", 10).code == 1
    done = shell.run("ls /nowhere", 10)
    assert done.code == 2
    assert "/nowhere" in done.output
    assert shell.run("no_such_command", 10).code == 127


@pytest.mark.parametrize(
    "command", ["cat", "read x; echo [$x]", "python3 -c 'print(len(open(0).read()))'", "bash", "sort -"]
)
def test_input_is_closed(shell: Any, command: str) -> None:
    assert shell.run(command, 30).code is not None


@pytest.mark.parametrize(
    "command", ["echo 'a", 'echo "a', "echo $(", "if true; then", "{ echo a", "echo `", "case x in", ")"]
)
def test_broken_syntax(shell: Any, command: str) -> None:
    shell.run("x=5", 10)
    done = shell.run(command, 10)
    assert done.code not in (0, None)
    assert done.output
    assert shell.run("echo $x", 10).output == "5\n"


def test_set_e_ends_the_shell_at_the_failure(shell: Any) -> None:
    done = shell.run("set -e; echo a; false; echo b", 10)
    assert (done.code, done.output) == (1, "a\n")
    assert "set -e" in done.note
    assert shell.run("false; echo c", 10).output == "c\n"


def test_nasty_options_do_not_break_the_next_call(shell: Any) -> None:
    shell.run("set -u; set -f; IFS=,; PS1=boo; PROMPT_COMMAND='echo boo'; alias printf=false eval=false", 10)
    done = shell.run("echo ${nope}", 10)
    assert done.code not in (0, None)
    shell.run("set -x", 10)
    done = shell.run("echo a", 10)
    assert done.code == 0
    assert "a\n" in done.output
    assert "boo" not in done.output


def test_loops_outside_and_functions_of_ours(shell: Any) -> None:
    assert shell.run("break; continue; echo a", 10).output.endswith("a\n")
    assert shell.run("return 4; echo a", 10).code == 4
    assert shell.run("echo b", 10).output == "b\n"


def test_output_without_line_end(shell: Any) -> None:
    assert shell.run("printf abc", 10).output == "abc"
    assert shell.run("echo d", 10).output == "d\n"


def test_binary_output(shell: Any) -> None:
    done = shell.run(r"printf 'a\000\377\033[31mb\n'", 10)
    assert done.output == "a\0\\xff\x1b[31mb\n"


def test_what_a_command_does_to_our_pipes_is_undone(shell: Any) -> None:
    shell.run("exec >/dev/null 2>&1; exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; exec </etc/passwd", 10)
    done = shell.run("echo a", 10)
    assert (done.code, done.output) == (0, "a\n")


def test_commands_do_not_see_our_pipes(shell: Any) -> None:
    assert shell.run("ls /proc/self/fd", 10).output.split() == ["0", "1", "2", "3"]


def test_a_time_limit_kills_everything_and_keeps_the_state(shell: Any, patient: None) -> None:
    shell.run("cd /usr; x=5", 10)
    done = shell.run(f"y=6; sleep 71.{OWN} | cat; echo no", 0.3)
    assert done.code is None
    assert "killed after 0.3 s" in done.note
    assert "the shell goes on" in done.note
    assert "no" not in done.output
    assert gone(f"71.{OWN}")
    assert shell.run("echo $x; pwd", 10).output == "5\n/usr\n"


def test_a_time_limit_kills_grandchildren_in_sessions_of_their_own(shell: Any) -> None:
    done = shell.run(
        f"setsid -f sleep 72.{OWN}; (setsid sleep 72.{OWN} &); bash -c 'trap \"\" INT TERM; sleep 72.{OWN}'", 0.3
    )
    assert done.code is None
    assert gone(f"72.{OWN}")


def test_a_time_limit_and_a_shell_that_does_not_listen(shell: Any) -> None:
    shell.run("x=5", 10)
    done = shell.run("trap '' INT; while :; do :; done", 0.2)
    assert done.code is None
    assert "a new one was started" in done.note
    assert shell.run("echo [$x]", 10).output == "[]\n"


def test_a_loop_of_commands_stops_at_the_time_limit(shell: Any, patient: None) -> None:
    assert shell.run(f"for i in 1 2 3 4 5 6; do sleep 73.{OWN}; done; echo no", 0.3).output == ""
    assert gone(f"73.{OWN}")


def test_background_jobs_do_not_hold_a_command_up_and_live_on(shell: Any, patient: None) -> None:
    done = shell.run(f"sleep 74.{OWN} & echo started", 10)
    assert done.code == 0
    assert "started\n" in done.output
    assert shell.run(f"sleep 75.{OWN}", 0.3).code is None
    assert running(f"74.{OWN}")
    assert gone(f"75.{OWN}")
    assert "Running" in shell.run("jobs", 10).output
    assert shell.run("kill %1; wait; echo done", 10).output.endswith("done\n")
    assert gone(f"74.{OWN}")


def test_what_background_jobs_print_comes_with_the_next_command(shell: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    shell.run("(read x < go; head -c 200000 /dev/zero | tr '\\0' z; echo; echo late; touch done) & echo now", 10)
    (tmp_path / "go").write_text("x\n")
    for _ in range(1000):
        if (tmp_path / "done").exists():
            break
        time.sleep(0.01)
    done = shell.run("echo next", 10)
    assert done.before.count("z") == 200_000
    assert done.before.endswith("late\n")
    assert done.output.startswith("next\n")


@pytest.mark.parametrize("command", ["kill -9 $$", "exec true", "exec sleep 0", "kill -TERM -- -$$; kill -9 $$"])
def test_the_shell_dies_and_another_one_comes(shell: Any, command: str) -> None:
    done = shell.run(command, 10)
    assert "a new one was started" in done.note
    assert shell.run("echo on", 10).output == "on\n"


def test_a_folder_that_went_away(shell: Any, tmp_path: Path) -> None:
    shell.run("mkdir d; cd d", 10)
    shell.run("rmdir ../d; exit", 10)
    assert shell.run("pwd", 10).output == f"{tmp_path}\n"


@pytest.mark.parametrize("command", ["", " \n", "echo a\0b", "echo \ud800"])
def test_what_no_shell_can_run(shell: Any, command: str) -> None:
    with pytest.raises(ValueError):
        shell.run(command, 10)
    assert shell.run("echo ü€😀", 10).output == "ü€😀\n"


def test_a_long_command(shell: Any) -> None:
    text = "it's \\ $x " * 20_000
    done = shell.run(f"cat <<'EOF' | wc -c\n{text}\nEOF", 10)
    assert done.output.split() == [str(len(text) + 1)]


def test_closing_ends_all_that_was_started(tmp_path: Path) -> None:
    shell = shells.Shell(str(tmp_path))
    shell.run(f"sleep 76.{OWN} & setsid -f sleep 76.{OWN}; disown -a", 10)
    shell.run("exit 1", 10)
    assert running(f"76.{OWN}")
    shell.close()
    assert gone(f"76.{OWN}")


def test_nobody_polls(shell: Any) -> None:
    """A hundred commands cost less processor time than one turn of a polling loop each would take as wall time."""
    shell.run("true", 10)
    before = time.process_time()
    for number in range(100):
        assert shell.run(f"echo {number}", 10).output == f"{number}\n"
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    "command",
    [f"sleep 77.{OWN} | cat; touch no", f"f() {{ sleep 77.{OWN}; touch no; }}; f", f"y=$(sleep 77.{OWN}; touch no); touch no",
     f"(sleep 77.{OWN}; touch no); touch no", "while :; do :; done; touch no", f"sleep 77.{OWN} && true || touch no"],
)  # fmt: skip
def test_what_follows_is_given_up_at_the_time_limit(shell: Any, tmp_path: Path, command: str) -> None:
    done = shell.run(command, 0.2)
    assert done.code is None
    assert gone(f"77.{OWN}")
    assert shell.run("echo on", 10).output == "on\n"
    assert not (tmp_path / "no").exists()


def test_a_program_that_ignores_the_interrupt_is_killed_with_its_shell(shell: Any, tmp_path: Path) -> None:
    shell.run(f"sleep 78.{OWN} &", 10)
    done = shell.run(f"bash -c 'trap \"\" INT TERM HUP; while :; do sleep 79.{OWN}; done'; touch no", 0.3)
    assert done.code is None
    assert "the shell too" in done.note
    assert gone(f"79.{OWN}")
    assert running(f"78.{OWN}")
    assert not (tmp_path / "no").exists()
