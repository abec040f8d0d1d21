"""QEMU: which accelerator works here, and a process that ends when its test run does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PROBE_SECONDS = 20


def accelerator(disk: Path, place: Path) -> str:
    """kvm where a kernel gets as far as looking for its disk, else tcg; QUICKSTART_VM_ACCEL overrules.

    A /dev/kvm that can be opened is no proof: below some hypervisors the kernel stops in its first second.
    """
    asked = os.environ.get("QUICKSTART_VM_ACCEL")
    if asked:
        return asked
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    console = place / "kvm.log"
    ends_at_once = ["-append", "console=ttyS0 panic=-1", "-no-reboot"]
    process = start("kvm", disk, console, ends_at_once)
    try:
        process.wait(PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(PROBE_SECONDS)
    written = console.read_text(errors="replace") if console.exists() else ""
    return "kvm" if "Unable to mount root fs" in written else "tcg"


def start(
    accelerator: str, disk: Path, console: Path, options: list[str], detached: bool = False
) -> subprocess.Popen[bytes]:
    """A machine with the disk's kernel and two processors. It ends with this thread, unless detached."""
    how = {
        "kvm": ["-accel", "kvm", "-cpu", "host"],
        "tcg": ["-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max"],
    }[accelerator]
    tied = ["setsid"] if detached else ["setpriv", "--pdeathsig", "KILL"]
    command = [*tied, "nice", "-n", "10", "qemu-system-x86_64", *how, "-smp", "2", "-display", "none"]
    command += ["-kernel", str(disk / "vmlinuz"), "-serial", f"file:{console}", "-monitor", "none"]
    with open(console.with_suffix(".qemu"), "wb") as log:
        return subprocess.Popen(
            [*command, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
