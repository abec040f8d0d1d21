"""One method, two ways to call it: blocking, and with await.

What the clients do is written once, as coroutines. An `Awaiting` object hands them out as they are. A
`Blocking` object runs them to their end: its wire does all I/O on the spot, so they never really wait, and no
event loop is needed. Type checkers and editors see the right signature on each side.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec

    P = ParamSpec("P")
else:
    P = TypeVar("P")  # Python 3.9 has no ParamSpec, and only type checkers need one

T = TypeVar("T")


class Blocking:
    """Its calls return when all is done; its iterations are plain iterators."""


class Awaiting:
    """Its calls are awaited; its iterations are asynchronous."""


class call(Generic[P, T]):
    """Decorates a coroutine method that answers once."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self._blocking = _blocking_call(method)

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return _bound(self._blocking, self._method, instance, owner)


class iteration(Generic[P, T]):
    """Decorates an asynchronous generator method."""

    def __init__(self, method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]]) -> None:
        self._method = method
        self._blocking = _blocking_iteration(method)

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, instance: Awaiting, owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return _bound(self._blocking, self._method, instance, owner)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise TypeError("Only AsyncSandboxClient can await: give this client plain functions.")


def _blocking_call(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    @functools.wraps(method)
    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(method(self, *args, **kwargs))

    return blocking


def _blocking_iteration(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Any, P], Generator[T, None, None]]:
    @functools.wraps(method)
    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return _each(method(self, *args, **kwargs))

    return blocking


def _each(items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    try:
        while True:
            try:
                item = run(items.asend(None))
            except StopAsyncIteration:
                return
            yield item
    finally:
        run(items.aclose())


def _bound(blocking: Any, awaiting: Any, instance: Any, owner: type) -> Any:
    function = awaiting if issubclass(owner, Awaiting) else blocking
    return function.__get__(instance, owner)
