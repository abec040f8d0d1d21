"""History shown again must not make a terminal speak: the answers would be typed into the shell.

What programs ask of a terminal (where the cursor is, what it is, which colours it has) is overwritten with
NULs, which terminals ignore, so that positions stay what they are.
"""

from __future__ import annotations

import re

_QUERIES = re.compile(
    rb"\x1b\[[?>=]?[0-9;]*[cn]"  # device attributes and status reports
    rb"|\x1b\[[?]?[0-9;]*\$p"  # modes
    rb"|\x1b\[>[0-9;]*q"  # the terminal's name
    rb"|\x1b\[[0-9;]*t"  # window reports
    rb"|\x1b\][0-9;]*;\?(?:\x07|\x1b\\)"  # colours
    rb"|\x1bP[$+]q[^\x1b\x07]{0,200}\x1b\\"  # settings and capabilities
    rb"|\x05"  # who are you
)


def without_queries(shown: bytes) -> bytes:
    return _QUERIES.sub(lambda query: bytes(len(query[0])), shown)
