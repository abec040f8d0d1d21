"""A unit's SystemCallFilter, loaded as systemd would load it before the program starts."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from pathlib import Path

# Runs in the process that becomes the program. Arguments: allow or refuse, the calls, the program.
LAUNCH = """
import ctypes, json, os, sys
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1
allows, calls, argv = sys.argv[1] == "allow", json.loads(sys.argv[2]), sys.argv[3:]
seccomp = ctypes.CDLL("libseccomp.so.2")
seccomp.seccomp_init.restype = ctypes.c_void_p
ours = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(REFUSE if allows else ALLOW)))
for name in calls:
    number = seccomp.seccomp_syscall_resolve_name(name.encode())
    if number >= 0:
        action = ctypes.c_uint32(ALLOW if allows else REFUSE)
        assert seccomp.seccomp_rule_add_array(ours, action, number, 0, None) == 0, name
assert seccomp.seccomp_load(ours) == 0
os.execvp(argv[0], argv)
"""


def launcher(unit: Path, python: str) -> list[str]:
    """What to put before a command so that it meets the unit's filter."""
    kind, calls = policy(unit)
    return [python, "-c", LAUNCH, kind, json.dumps(sorted(calls))]


def policy(unit: Path) -> tuple[str, set[str]]:
    """An allow-list with what later lines take away, or a list of what is refused."""
    lines = re.findall(r"^SystemCallFilter=(~?)(.*)$", unit.read_text(), re.M)
    assert lines, "the unit has no filter"
    allowing = not lines[0][0]
    calls = set(members("@default")) if allowing else set()
    for inverted, words in lines:
        named = {call for word in words.split() for call in members(word)}
        calls = calls - named if allowing and inverted else calls | named
    return ("allow" if allowing else "refuse"), calls


@functools.cache
def members(word: str) -> frozenset[str]:
    if not word.startswith("@"):
        return frozenset({word})
    command = ["systemd-analyze", "syscall-filter", word]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    lines = [line.split("#")[0].strip() for line in told.splitlines()[1:]]
    return frozenset(call for line in lines if line for call in members(line))
