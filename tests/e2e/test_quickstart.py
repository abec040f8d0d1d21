"""quickstart.sh, as a person meets it: one installation, from nothing to nothing.

The tests share it and run in the order of this file; the last one uninstalls.
"""

import json
import re
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.installation import ROOT, Place, docker, is_running, new_place, run

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def installed() -> Iterator[Place]:
    with new_place() as place:
        answer = place.run()
        assert answer.code == 0, answer.out + answer.err
        yield place


def printed(text: str, begin: str, end: str) -> str:
    """The commands that quickstart shows between two of its headings."""
    part = text.partition(begin)[2].partition(end)[0]
    return re.sub(r"^  (?=\S)", "", part, flags=re.M)


def bash(script: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euc", script], env=env, cwd="/", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_second_run_is_quick_and_changes_nothing(installed: Place) -> None:
    """The same key, the same processes, the same settings; within seconds."""
    before = (installed.pids(), installed.key(), (installed.state / "env").read_bytes())
    answer = installed.run()
    assert answer.code == 0, answer.err
    assert (installed.pids(), installed.key(), (installed.state / "env").read_bytes()) == before
    assert installed.key() in answer.out
    assert "Kernel settings" not in answer.out
    assert answer.seconds < 5  # 1.1 s where nothing else runs


def test_the_printed_curl_lines_work_as_they_stand(installed: Place) -> None:
    text = installed.run().out
    answer = bash(printed(text, "Try it with curl:", "or with Python:"), installed.env)
    assert json.loads(answer)["output"] == "hello from user\n"


def test_the_printed_python_snippet_works_as_it_stands(installed: Place) -> None:
    """The client finds the URL and the key by itself."""
    text = installed.run().out
    snippet = printed(text, "or with Python:", "or in a terminal")
    assert bash(snippet, installed.env).rstrip().endswith("0")


def test_the_printed_program_is_there(installed: Place) -> None:
    line = printed(installed.run().out, "or in a terminal of its own:", "Next:").strip()
    assert "Open a terminal in a sandbox" in bash(f"{line} --help", installed.env)


def test_status_of_a_running_server(installed: Place) -> None:
    status = installed.run("status")
    assert status.code == 0, status.out
    assert f"web: running, pid {installed.pids()[1]}" in status.out


def test_secrets_are_for_their_owner(installed: Place) -> None:
    """Credentials 0600, settings 0640, quickstart's own directory 0700; no key among the settings or logs."""
    modes = {
        installed.credentials: 0o600,
        installed.state / "env": 0o640,
        installed.state / "quickstart": 0o700,
    }
    for path, mode in modes.items():
        assert stat.S_IMODE(path.stat().st_mode) == mode, path
    for path in [installed.state / "env", *installed.state.glob("quickstart/*.log")]:
        assert installed.key() not in path.read_text()


def test_settings_are_remembered(installed: Place) -> None:
    """A start without any SANDBOX_* but the state directory uses those of the first start."""
    env = {k: v for k, v in installed.env.items() if k not in ("SANDBOX_BIND", "QUICKSTART_IMAGE_TAG")}
    pids = installed.pids()
    answer = run([str(ROOT / "quickstart.sh")], env)
    assert answer.code == 0, answer.err
    assert installed.env["SANDBOX_BIND"] in answer.out
    assert installed.pids() == pids


def test_a_wrong_setting_is_named_and_not_remembered(installed: Place) -> None:
    before = (installed.state / "env").read_bytes()
    answer = installed.run(SANDBOX_LEASE="soon")
    assert answer.code == 1
    assert "SANDBOX_LEASE" in answer.err
    assert (installed.state / "env").read_bytes() == before
    assert installed.run("status").code == 0


def test_a_key_that_the_server_does_not_know_is_replaced(installed: Place) -> None:
    url = json.loads(installed.credentials.read_text())["url"]
    installed.credentials.write_text(json.dumps({"url": url, "api_key": "e2b_" + "0" * 80}))
    assert installed.run().code == 0
    assert installed.key() != "e2b_" + "0" * 80
    text = installed.run().out
    assert "hello" in bash(printed(text, "Try it with curl:", "or with Python:"), installed.env)


def test_sandboxctl_is_there_and_knows_the_installation(installed: Place) -> None:
    """From anywhere, with the settings of the server."""
    program = Path(installed.env["QUICKSTART_VENV"], "bin", "sandboxctl")
    answer = run([str(program), "tenant", "show", "default", "--json"], installed.env)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["usage"]["keys"] >= 1


PYTHON_IN = "from sandbox_client import SandboxClient; "


def client(place: Place, code: str) -> str:
    python = Path(place.env["QUICKSTART_VENV"], "bin", "python")
    done = subprocess.run(
        [python, "-c", PYTHON_IN + code], env=place.env, cwd="/", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_stop_and_two_starts_at_once(installed: Place) -> None:
    """stop ends both processes; of two starts one waits for the other; open sandboxes live on."""
    session = client(installed, "s = SandboxClient(); s.execute('x=kept'); print(s.session_id)")
    old = installed.pids()
    assert installed.run("stop").code == 0
    assert not any(map(is_running, old))
    assert installed.run("status").code == 3
    command = [str(ROOT / "quickstart.sh")]
    starts = [subprocess.Popen(command, env=installed.env, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [start.wait(timeout=120) for start in starts] == [0, 0]
    assert all(map(is_running, installed.pids()))
    assert client(installed, f"print(SandboxClient.attach('{session}').execute('echo $x').output)") == "kept"


def test_foreground_ends_with_a_signal(installed: Place) -> None:
    """--foreground stays until SIGTERM, then stops both processes and exits with 0."""
    assert installed.run("stop").code == 0
    command = [str(ROOT / "quickstart.sh"), "--foreground"]
    with subprocess.Popen(command, env=installed.env, stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 90
            while installed.run("status").code != 0 and time.monotonic() < deadline:
                time.sleep(0.2)
            pids = installed.pids()
            time.sleep(1)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert not any(map(is_running, pids))


def test_a_server_that_can_start_no_sandbox_is_a_failure_in_the_engines_own_words(installed: Place) -> None:
    """Here the operator names an OCI runtime that the engine does not know. The next start puts it right."""
    assert installed.run().code == 0
    pids = installed.pids()
    answer = installed.run(SANDBOX_OCI_RUNTIME="never-installed")
    assert answer.code == 1
    assert "The sandbox server answers" not in answer.out
    assert "never-installed" in answer.err.partition("sandboxctl status")[2]
    assert not any(map(is_running, pids))
    assert "SANDBOX_OCI_RUNTIME=never-installed" in answer.err
    again = installed.run()  # with the settings of the last good start
    assert again.code == 0, again.err


def test_an_interrupted_start_leaves_no_server_that_was_not_ready(installed: Place) -> None:
    assert installed.run("stop").code == 0
    quickstart = [str(ROOT / "quickstart.sh")]
    with subprocess.Popen(quickstart, env=installed.env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "Wait until" not in process.stdout.readline():
            assert process.poll() is None
        pids = installed.pids()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert not any(map(is_running, pids))
    assert installed.run().code == 0


def test_uninstall_leaves_nothing(installed: Place) -> None:
    """No container, image tag, process, directory or credentials; a second one has nothing to do."""
    assert installed.run().code == 0
    client(installed, "print(SandboxClient().session_id)")
    instance = (installed.state / "instance").read_text().split()[0]
    ours = f"label=sandbox-server.instance={instance}"  # others may run from the same image
    containers = docker("ps", "-aq", "--no-trunc", "--filter", ours).split()
    pids = installed.pids()
    assert containers
    answer = installed.run("uninstall")
    assert answer.code == 0, answer.err
    assert not answer.err
    assert not set(containers) & set(docker("ps", "-aq", "--no-trunc").split())
    assert not docker("images", "-q", installed.image)
    assert not any(map(is_running, pids))
    assert [p.name for p in installed.dir.iterdir() if p.name != "config"] == []
    assert not installed.credentials.parent.exists()
    assert "Nothing is installed" in installed.run("uninstall").out
