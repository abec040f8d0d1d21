"""The keys that leave `sandbox shell`: Enter, then ~, then a dot. As people know it from ssh."""

from __future__ import annotations

from dataclasses import dataclass

ENTER = (b"\r", b"\n")
MARK = b"~"
HELP = b"\r\n~.  leave\r\n~~  send ~\r\n~?  this help\r\n"


@dataclass(frozen=True)
class Typed:
    """What to send, what to show here, and whether to leave."""

    send: bytes = b""
    show: bytes = b""
    leave: bool = False


class Escapes:
    """Finds escapes in what is typed, however it is cut into pieces."""

    def __init__(self) -> None:
        self._line_is_fresh = True
        self._marked = False

    def read(self, keys: bytes) -> Typed:
        send, show = bytearray(), bytearray()
        for key in (keys[i : i + 1] for i in range(len(keys))):
            if self._marked:
                self._marked = False
                if key == b".":
                    return Typed(bytes(send), bytes(show), leave=True)
                if key == b"?":
                    show += HELP
                    continue
                send += MARK if key == MARK else MARK + key
            elif self._line_is_fresh and key == MARK:
                self._marked = True
                continue
            else:
                send += key
            self._line_is_fresh = key in ENTER
        return Typed(bytes(send), bytes(show))
