"""nginx, if one here passes requests on to us: does it hold answers back, and does it take what we take?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from server.config import Config
from server.keeper.doctor import MAJOR, MINOR, NOTE, Finding, judged, unknown
from server.keeper.doctor.nginx_conf import Directive, Unreadable, read

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LOOPBACK = ("127.0.0.1:", "[::1]:", "localhost:")
_SHIPPED = "take deploy/nginx.conf as it is, or this line from it: {}"

Settings = dict[str, tuple[str, ...]]


def examine(config: Config, root: Path) -> Iterator[Finding]:
    path = root / "etc/nginx/nginx.conf"
    try:
        tree = read(path)
    except FileNotFoundError:
        yield from _without(config)
        return
    except (OSError, Unreadable) as exc:
        yield unknown("proxy.configuration", exc, "nginx -t")
        return
    ways = list(leading_to(tree, config.bind))
    if not ways:
        yield from _without(config)
        return
    yield from judge(config, ways)
    yield from _connections(tree)


def _without(config: Config) -> Iterator[Finding]:
    yield judged(
        "proxy.there",
        config.bind.startswith(_LOOPBACK),
        MAJOR,
        "no nginx here passes requests on; the server listens on " + config.bind,
        "nginx with TLS in front, or only this machine as a client",
        "install deploy/nginx.conf, and SANDBOX_BIND=127.0.0.1:5000: keys can be read on the way now",
    )


def leading_to(tree: list[Directive], bind: str) -> Iterator[Settings]:
    """What holds in each location that passes requests on to us: its own settings over those around it."""
    for http in _named(tree, "http"):
        ours = {bind, *_upstreams(http.block, bind)}
        around = _settings(http.block, {})
        for server in _named(http.block, "server"):
            inside = _settings(server.block, around)
            for location in _named(server.block, "location"):
                passed = [line.words[0] for line in _named(location.block, "proxy_pass") if line.words]
                if any(re.sub(r"^https?://", "", to).split("/")[0] in ours for to in passed):
                    yield {**_settings(location.block, inside), "location": location.words}


def judge(config: Config, ways: list[Settings]) -> Iterator[Finding]:
    """The way with the worst setting speaks for all."""
    longest = 2 * config.timeout_max
    for id, severity, name, default, right, wanted in (
        ("proxy.buffering", MAJOR, "proxy_buffering", "on", lambda v: v == "off", "off"),
        ("proxy.compression", MINOR, "gzip", "off", lambda v: v == "off", "off"),
        ("proxy.body", MINOR, "client_max_body_size", "1m",
         lambda v: not size(v) or size(v) >= config.body_limit, f"{config.body_limit >> 20}m or more"),
        ("proxy.patience", MAJOR, "proxy_read_timeout", "60s",
         lambda v: seconds(v) >= longest, f"{longest:.0f}s or more"),
        ("proxy.http", MAJOR, "proxy_http_version", "1.0", lambda v: v == "1.1", "1.1"),
        ("proxy.tls", MAJOR, "ssl_certificate", "none", lambda v: v != "none", "a certificate"),
        ("proxy.address", MAJOR, "proxy_set_header x-forwarded-for", "not set",
         lambda v: v in ("$remote_addr", "$proxy_add_x_forwarded_for"), "$remote_addr"),
        ("proxy.websocket", MINOR, "proxy_set_header upgrade", "not set",
         lambda v: v != "not set", "$http_upgrade"),
    ):  # fmt: skip
        values = [_value(way, name, default) for way in ways]
        bad = [value for value in values if not right(value)]
        found = "there" if name == "ssl_certificate" and not bad else (bad or values)[0]
        advice = _SHIPPED.format(f"{name} {wanted};")
        yield judged(id, not bad, severity, f"{name}: {found}", wanted, advice)


def _connections(tree: list[Directive]) -> Iterator[Finding]:
    events = [line for block in _named(tree, "events") for line in _named(block.block, "worker_connections")]
    most = int(events[0].words[0]) if events and events[0].words[0].isdigit() else 512
    yield judged(
        "proxy.connections",
        most >= 4096,
        NOTE,
        f"worker_connections {most}",
        "4096 or more",
        "sed -i 's/worker_connections .*;/worker_connections 8192;/' /etc/nginx/nginx.conf, and reload",
    )


def _named(block: list[Directive], name: str) -> list[Directive]:
    return [directive for directive in block if directive.name == name]


def _upstreams(block: list[Directive], bind: str) -> Iterator[str]:
    for upstream in _named(block, "upstream"):
        if any(line.words[:1] == (bind,) for line in _named(upstream.block, "server")):
            yield upstream.words[0]


def _settings(block: list[Directive], around: Settings) -> Settings:
    """A block that sets one header of a request loses all that were set around it: that is nginx's way."""
    own: Settings = {}
    for line in block:
        if line.name == "proxy_set_header" and len(line.words) > 1:
            own[f"proxy_set_header {line.words[0].lower()}"] = line.words[1:]
        elif not line.block:
            own[line.name] = line.words
    if any(name.startswith("proxy_set_header ") for name in own):
        around = {name: words for name, words in around.items() if not name.startswith("proxy_set_header ")}
    return {**around, **own}


def _value(way: Settings, name: str, default: str) -> str:
    return way[name][0] if way.get(name) else default


def size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([kmg]?)", text.lower())
    return int(match[1]) * _UNITS[match[2]] if match else 0


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)([smhd]?)", text)
    return float(match[1]) * _SECONDS[match[2]] if match else 0.0
