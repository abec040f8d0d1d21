"""A machine under QEMU: booted from an overlay on the prepared disk, and driven over ssh.

Nothing of it reaches a network: QEMU forwards ssh from loopback, and ssh the server's ports.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import threading
import time
from pathlib import Path

from tests.hosts.vm import qemu

BOOT_SECONDS = 900
HTTP, HTTPS = 5000, 443
KERNEL = "root=/dev/vda rw console=ttyS0 net.ifnames=0"
# An emulated processor is slow, and may not survive a kernel that rewrites itself: see quota-in-use.service.
EMULATED = "systemd.wants=quota-in-use.service systemd.default_device_timeout_sec=600"
# What a person would look at first.
LOGS = (
    "journalctl --no-pager -n 60 -u sandbox-keeper -u sandbox-web -u docker;"
    "tail -n 40 /var/lib/sandbox-server/quickstart/*.log"
)


class CommandFailed(AssertionError):
    """A command in the machine failed, or took too long."""


class Machine:
    """One machine. `disk` is what scripts/vm.sh made, `place` holds what belongs to this machine alone.

    With `keep` it runs on when its test run ends, and the next one finds it.
    """

    def __init__(self, disk: Path, place: Path, keep: bool = False, memory: str = "4G") -> None:
        self.disk = disk
        self.place = place
        self.keep = keep
        self.memory = memory
        self.pid = 0
        self.accelerator = ""
        self.ports: dict[int, int] = {}
        self._qemu: subprocess.Popen[bytes] | None = None
        self._tunnel: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Start it, or find it running, and wait until systemd has done its work."""
        if not self._find():
            self.accelerator = qemu.accelerator(self.disk, self.place)
            self.ports = {port: free_port() for port in (22, HTTP, HTTPS)}
            self._qemu = self._start()
            self.pid = self._qemu.pid
            about = {"pid": self.pid, "accelerator": self.accelerator, "ports": self.ports}
            (self.place / "machine.json").write_text(json.dumps(about))
        self._wait_up()

    def _find(self) -> bool:
        path = self.place / "machine.json"
        if not path.exists():
            return False
        about = json.loads(path.read_text())
        self.pid, self.accelerator = about["pid"], about["accelerator"]
        self.ports = {int(port): here for port, here in about["ports"].items()}
        return Path(f"/proc/{self.pid}").exists()

    def _start(self) -> subprocess.Popen[bytes]:
        overlay, base = self.place / "disk.qcow2", self.disk / "disk.raw"
        make = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base.absolute(), overlay]
        subprocess.run(make, check=True, timeout=60)
        append = f"{KERNEL} {EMULATED}" if self.accelerator == "tcg" else KERNEL
        network = f"user,model=virtio-net-pci,restrict=on,hostfwd=tcp:127.0.0.1:{self.ports[22]}-:22"
        options = ["-m", self.memory, "-initrd", str(self.disk / "initrd"), "-append", append]
        options += ["-drive", f"file={overlay},if=virtio,cache=unsafe,discard=unmap"]
        options += ["-device", "virtio-rng-pci", "-nic", network]
        return qemu.start(
            self.accelerator, self.disk, self.place / "console.log", options, detached=self.keep
        )

    def _wait_up(self) -> None:
        deadline = time.monotonic() + BOOT_SECONDS
        while not self._connect():
            has_ended = self._qemu is not None and self._qemu.poll() is not None
            if has_ended or time.monotonic() > deadline:
                raise CommandFailed(f"The machine does not answer.\n{self.console()}")
            time.sleep(1)
        self.run("systemctl is-system-running --wait || true", seconds=BOOT_SECONDS)

    def _connect(self) -> bool:
        """One connection for all commands, with the server's ports."""
        self._disconnect()
        (self.place / "ssh").unlink(missing_ok=True)
        tunnels = [f"-L127.0.0.1:{self.ports[port]}:127.0.0.1:{port}" for port in (HTTP, HTTPS)]
        command = self._ssh("-M", "-N", "-o", "ExitOnForwardFailure=yes", *tunnels)
        with open(self.place / "ssh.log", "ab") as log:
            self._tunnel = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while self._tunnel.poll() is None and time.monotonic() < deadline:
            if (self.place / "ssh").exists():
                return True
            time.sleep(0.1)
        return False

    def _disconnect(self) -> None:
        if self._tunnel is not None:
            self._tunnel.kill()
            self._tunnel.wait(10)
            self._tunnel = None

    def _ssh(self, *options: str) -> list[str]:
        settings = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        settings += ["ConnectTimeout=30", "ServerAliveInterval=30", "ServerAliveCountMax=10"]
        words = [word for setting in settings for word in ("-o", setting)]
        words += ["-S", str(self.place / "ssh"), "-i", str(self.disk / "key"), "-p", str(self.ports[22])]
        return ["ssh", *words, *options, "root@127.0.0.1"]

    def run(self, script: str, seconds: float = 120, show: bool = False) -> str:
        """The output of a shell script; with `show` printed as it comes, errors included."""
        command = [*self._ssh(), "bash -euo pipefail -c " + shlex.quote(script)]
        errors = subprocess.STDOUT if show else subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        lines = []
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if show:
                    print(f"   | {line}", end="", flush=True)
            said = process.stderr.read() if process.stderr else ""
        is_late = not timer.is_alive()
        timer.cancel()
        output = "".join(lines)
        if process.returncode != 0:
            how = f"took more than {seconds:g} s" if is_late else f"exit code {process.returncode}"
            raise CommandFailed(f"{how}: {script}\n{output[-5000:]}{said[-5000:]}")
        return output

    def until(self, script: str, seconds: float) -> str:
        """The output of a script, once it succeeds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.run(script)
            except CommandFailed:
                if time.monotonic() > deadline:
                    raise
            time.sleep(2)

    def read(self, path: str) -> str:
        return self.run(f"cat {shlex.quote(path)}").strip()

    def write(self, path: str, text: str) -> None:
        self.run(f"printf %s {shlex.quote(text)} >{shlex.quote(path)}")

    def copy(self, local: Path, remote: str) -> None:
        command = [*self._ssh(), f"cat >{shlex.quote(remote)}"]
        with local.open("rb") as file:
            subprocess.run(command, stdin=file, check=True, timeout=600)

    def reboot(self) -> None:
        before = self.read("/proc/sys/kernel/random/boot_id")
        with contextlib.suppress(CommandFailed):
            self.run("systemctl reboot", seconds=60)
        deadline = time.monotonic() + BOOT_SECONDS
        while True:
            self._wait_up()
            if self.read("/proc/sys/kernel/random/boot_id") != before:
                return
            assert time.monotonic() < deadline, f"It does not go down.\n{self.console()}"
            time.sleep(2)

    def logs(self) -> str:
        """For a test that failed: the journal, the server's logs, the end of the console."""
        with contextlib.suppress(CommandFailed):
            return self.run(LOGS + " || true") + self.console()
        return self.console()

    def console(self) -> str:
        return (self.place / "console.log").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        self._disconnect()
        if self._qemu is not None and not self.keep:
            self._qemu.kill()
            self._qemu.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
