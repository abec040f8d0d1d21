"""What stands behind an exception."""

from __future__ import annotations

from collections.abc import Iterator


def causes(exc: BaseException) -> Iterator[BaseException]:
    """It, and whatever it was raised for; requests and urllib3 wrap what the kernel said."""
    waiting: list[object] = [exc]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseException):
            yield one
            waiting += [*one.args, getattr(one, "reason", None), one.__cause__, one.__context__]
