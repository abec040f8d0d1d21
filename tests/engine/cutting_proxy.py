"""A TCP proxy that can cut its connections, as a network does."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

RESET = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Passes bytes on to a port. `cut_after` is a list: each new connection that is told more than so many
    bytes by the server is reset there."""

    def __init__(self, port: int) -> None:
        self.cut_after: list[int] = []
        self.cuts = 0
        self._target = port
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset every connection that is open now."""
        for connection in self._open[:]:
            self._reset(connection)
        self._open.clear()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target), timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        self._open.append(client)
        threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()
        limit = self.cut_after.pop(0) if self.cut_after else None
        with contextlib.suppress(OSError):
            passed = 0
            while data := server.recv(65536):
                client.sendall(data if limit is None else data[: max(0, limit - passed)])
                passed += len(data)
                if limit is not None and passed >= limit:
                    self.cuts += 1
                    self._reset(client)
                    break
        self._shut(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        self._shut(client, server)

    @staticmethod
    def _reset(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.shutdown(socket.SHUT_RD)
            connection.close()

    @staticmethod
    def _shut(*connections: socket.socket) -> None:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@contextlib.contextmanager
def cutting(port: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
