"""Who is at the other end. What X-Forwarded-For says counts only as far as trusted proxies have said it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from flask import request

from server.limit_settings import Network

_MOST_KNOWN = 4096
_PREFIX = 64  # what one customer of an IPv6 provider has at least


class Addresses:
    def __init__(self, proxies: Iterable[Network]) -> None:
        self._proxies = tuple(proxies)
        self._known: dict[tuple[str, str], str] = {}

    def client(self) -> str:
        """Of the request that is being answered."""
        said = (request.remote_addr or "", request.environ.get("HTTP_X_FORWARDED_FOR", ""))
        found = self._known.get(said)
        if found is None:
            found = self.behind(*said)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[said] = found
        return found

    def behind(self, peer: str, forwarded: str) -> str:
        """The nearest that is not a proxy of ours. Each proxy adds whom it speaks for at the end."""
        said = [part.strip() for part in forwarded.split(",")] if forwarded else []
        while said and self._is_proxy(peer):
            named = _address(said.pop())
            if named is None:
                break
            peer = str(named)
        return peer

    def _is_proxy(self, peer: str) -> bool:
        address = _address(peer)
        return address is not None and any(address in network for network in self._proxies)


def whole_network(address: str) -> str:
    """What is counted together: of IPv6 all of a /64, which one caller can choose from."""
    found = _address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, _PREFIX), strict=False))
    return address[:64]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
