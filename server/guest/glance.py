"""Whether a user's directory has something of that name: asked after every command, so it must cost nothing.

Only what files are checked against changes, in this thread alone and without letting another one of ours run.
"""

from __future__ import annotations

import ctypes
import os


class Glance:
    def __init__(self) -> None:
        self._set = ctypes.PyDLL(None).setfsuid

    def sees(self, uid: int, path: str) -> bool:
        self._set(uid)
        try:
            os.stat(path, follow_symlinks=False)
        except OSError:
            return False
        finally:
            self._set(0)
        return True
