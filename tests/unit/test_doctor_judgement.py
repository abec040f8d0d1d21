"""The doctor's judgement, on facts of real machines: engines, runtimes, nginx, permissions, certificates."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from server import config as configuration
from server import instance as installation
from server.config import Config
from server.ctl.sysctl import raise_all
from server.instance import Owner
from server.keeper.doctor import (
    Finding,
    engine,
    hosts,
    kernel,
    leftovers,
    nginx_conf,
    oci,
    proxy,
    public,
    room,
    state,
    wall,
)
from server.keeper.doctor.grading import EXIT_CODES, as_text, finding_of, grade, report
from server.keeper.doctor.nginx_conf import Unreadable
from server.keeper.doctor.room import Stock
from server.keeper.runtime.facts import facts_of
from server.keeper.runtime.oci import KINDS, Oci
from server.keeper.selfcheck import UNDER_STRAIN

ROOT = Path(__file__).resolve().parents[2]
CAPTURED = Path(__file__).parent / "captured"
DEBIAN_12 = json.loads((CAPTURED / "engine-20.10.json").read_text())
DAY = 86400.0


def findings(*severities: str) -> list[Finding]:
    return [Finding(f"x.{number}", severity, "a", "b") for number, severity in enumerate(severities)]


@pytest.mark.parametrize(
    ("severities", "wanted", "code"),
    [
        ((), "A", 0),
        (("ok", "note"), "A", 0),
        (("minor", "minor", "minor"), "B", 0),
        (("major", "minor"), "C", 3),
        (("major", "major"), "D", 4),
        (("critical", "ok"), "F", 5),
    ],
)
def test_the_worst_finding_decides_the_grade(severities: tuple[str, ...], wanted: str, code: int) -> None:
    told = grade(findings(*severities))
    assert (told, EXIT_CODES[told]) == (wanted, code)


def test_a_report_has_the_worst_first_and_says_what_to_do() -> None:
    told = report([*findings("ok", "minor"), Finding("a.b", "critical", "is so", "other", "change it")])
    assert [one["severity"] for one in told["findings"]] == ["critical", "minor", "ok"]
    text = as_text(told)
    assert text.startswith("Grade F")
    assert "a.b: is so" in text and "should be: other" in text and "do: change it" in text
    assert [finding_of(one).as_json() for one in told["findings"]] == told["findings"]


def by_id(found: object) -> dict[str, Finding]:
    told = {finding.id: finding for finding in found}  # type: ignore[attr-defined]
    for finding in told.values():
        assert (finding.severity == "ok") == (finding.advice == ""), finding
    return told


def test_an_engine_as_debian_ships_it() -> None:
    told = by_id(engine.judge(facts_of(DEBIAN_12)))
    assert told["engine.version"].severity == told["engine.seccomp"].severity == "ok"
    assert told["engine.live_restore"].severity == "minor"
    assert told["engine.cgroups"].found == "version 1"


def test_an_engine_as_it_should_not_be() -> None:
    spoilt = {
        **DEBIAN_12,
        "ServerVersion": "19.03.15",
        "SecurityOptions": ["name=rootless", "name=userns", "name=cgroupns"],
        "LiveRestoreEnabled": True,
        "CgroupVersion": "2",
    }
    told = by_id(engine.judge(facts_of(spoilt)))
    wrong = {id: finding.severity for id, finding in told.items() if finding.severity != "ok"}
    assert wrong == {
        "engine.version": "major",
        "engine.seccomp": "critical",
        "engine.apparmor": "note",
        "engine.userns_remap": "major",
        "engine.rootless": "major",
    }


def test_an_engine_that_tells_little_is_judged_all_the_same() -> None:
    told = by_id(engine.judge(facts_of({"ServerVersion": "28.2.2", "SecurityOptions": None})))
    assert told["engine.seccomp"].severity == "critical"


@pytest.mark.parametrize(
    ("name", "version", "severity", "named"),
    [
        ("runc", "1.1.5+ds1-1+deb12u1", "minor", "CVE-2025-31133"),
        ("runc", "1.1.5", "major", "CVE-2024-21626"),
        ("runc", "1.2.7", "minor", "CVE-2025-52881"),
        ("runc", "1.2.8", "ok", ""),
        ("runc", "1.3.2", "minor", "CVE-2025-52565"),
        ("runc", "v1.3.3-0-gd842d771", "ok", ""),
        ("runc", "1.4.0", "ok", ""),
        ("crun", "1.8.1", "note", "CVE-2025-24965"),
        ("crun", "1.21", "ok", ""),
        ("kata", "3.0", "note", "kata"),
    ],
)
def test_a_runtime_is_told_what_it_lacks(name: str, version: str, severity: str, named: str) -> None:
    told = by_id(oci.judge(Oci(name, name if name in KINDS else "", version)))["oci.version"]
    assert (told.severity, named in told.found) == (severity, True)


TESTED = [
    {
        "distribution": "Debian GNU/Linux 12 (bookworm)",
        "engine": "20.10.24",
        "cgroup": "v1",
        "oci_runtime": "runc 1.1.5",
    }
]


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({}, "ok"),
        ({"ServerVersion": "20.10.9"}, "ok"),
        ({"ServerVersion": "29.0.1"}, "note"),
        ({"CgroupVersion": "2"}, "note"),
        ({"OperatingSystem": "Ubuntu 24.04 LTS"}, "note"),
    ],
)
def test_a_host_on_which_no_test_ran_is_noted(changes: dict[str, str], severity: str) -> None:
    told = by_id(hosts.judge(facts_of({**DEBIAN_12, **changes}), Oci("runc", "runc", "1.1.5"), TESTED))
    assert told["host.tested"].severity == severity


def test_a_runtime_that_the_engine_does_not_know_is_found() -> None:
    told = by_id(oci.examine(Oci("runsc", "runsc", ""), facts_of(DEBIAN_12), ""))
    assert told["oci.runtime"].severity == "major"


def settings_below(root: Path, **values: int) -> dict[str, Path]:
    """A /proc/sys with these, by their names without dots."""
    places = {name: root / "proc/sys" / name.replace("__", "/") for name in values}
    for name, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{values[name]}\n")
    return places


def test_settings_are_raised_and_never_lowered(tmp_path: Path) -> None:
    """Debian 13 has more process numbers, and is stricter with counters and files, than we ask for."""
    higher = {"kernel__pid_max": 4194304, "kernel__perf_event_paranoid": 3, "fs__protected_regular": 2}
    places = settings_below(tmp_path, **higher, kernel__kptr_restrict=0, kernel__pty__max=4096)
    raised = list(raise_all(tmp_path))
    assert raised == [("kernel.pty.max", 4096, 65536), ("kernel.kptr_restrict", 0, 1)]
    assert {name: int(place.read_text()) for name, place in places.items()} == {
        **higher,
        "kernel__kptr_restrict": 1,
        "kernel__pty__max": 65536,
    }
    assert list(raise_all(tmp_path)) == []
    assert not [one for one in kernel.sysctls(tmp_path) if one.severity != "ok"]


def test_a_setting_that_cannot_be_written_is_said_and_the_others_are_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container: here the first is a file that takes no writing."""
    settings_below(tmp_path, kernel__kptr_restrict=0)
    (tmp_path / "proc/sys/kernel/pty").mkdir()
    (tmp_path / "proc/sys/kernel/pty/max").symlink_to("/proc/sys/kernel/random/entropy_avail")  # read-only
    assert [name for name, *_ in raise_all(tmp_path)] == ["kernel.kptr_restrict"]
    assert "kernel.pty.max stays at" in capsys.readouterr().err


def test_a_setting_below_its_least_value_is_found(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/kptr_restrict").write_text("0\n")
    (tmp_path / "proc/sys/kernel/pid_max").write_text("4194304\n")
    told = by_id(kernel.sysctls(tmp_path))
    assert told["sysctl.kernel.kptr_restrict"].severity == "minor"
    assert "sandboxctl sysctl" in told["sysctl.kernel.kptr_restrict"].advice
    assert told["sysctl.kernel.pid_max"].severity == told["sysctl.kernel.io_uring_disabled"].severity == "ok"


@pytest.mark.parametrize(("engine_time", "severity"), [(1000.0, "ok"), (940.0, "major"), (1100.0, "major")])
def test_an_engine_with_another_time_is_found(engine_time: float, severity: str) -> None:
    assert by_id(kernel.clock(engine_time, (1000.2, 1000.4)))["clock.engine"].severity == severity


def test_storage_that_is_soft_full_or_slow_is_found() -> None:
    def told(**fields: object) -> dict[str, str]:
        stock = replace(Stock(True, "simple", None, (100 << 30, 50 << 30)), **fields)  # type: ignore[arg-type]
        return {id: finding.severity for id, finding in by_id(room.storage(stock)).items()}

    assert set(told().values()) == {"ok"}
    assert told(hard=False, concern="no btrfs") == {"storage.hard": "major"}
    assert told(quotas="full")["storage.quotas"] == "minor"
    assert told(room=(100 << 30, 15 << 30))["storage.room"] == "major"
    assert told(room=(100 << 30, 5 << 30))["storage.room"] == "critical"


@pytest.mark.parametrize(
    ("free", "inodes", "severity"),
    [
        (10 << 30, 0.5, "ok"),
        (3 << 30, 0.5, "major"),
        (1 << 20, 0.5, "critical"),
        (10 << 30, 0.001, "critical"),
    ],
)
def test_a_disk_that_is_nearly_full_is_found(free: int, inodes: float, severity: str) -> None:
    assert room.judge_space("disk.state", free, inodes).severity == severity


@pytest.fixture
def place(tmp_path: Path) -> Config:
    config = configuration.load({"SANDBOX_STATE_DIR": str(tmp_path / "state")})
    installation.prepare(config)
    return config


def test_a_state_directory_that_was_just_made_is_right(place: Config) -> None:
    told = by_id(state.rights(place, Owner(os.geteuid(), os.getegid()), os.geteuid()))
    assert {"state.directory", "state.instance", "state.store", "state.store.store.db"} <= set(told)
    assert {finding.severity for finding in told.values()} == {"ok"}


@pytest.mark.parametrize("path", ["instance", "store", "store/store.db", "uploads", "run", "volumes"])
def test_what_others_may_read_is_found(place: Config, path: str) -> None:
    (place.state / path).chmod(0o755)
    told = by_id(state.rights(place, Owner(os.geteuid(), os.getegid()), os.geteuid()))
    wrong = [finding for finding in told.values() if finding.severity != "ok"]
    assert [(one.id, one.severity) for one in wrong] == [(f"state.{path.replace('/', '.')}", "critical")]
    assert str(place.state / path) in wrong[0].advice


def test_what_belongs_to_somebody_else_is_found(place: Config) -> None:
    told = by_id(state.rights(place, Owner(os.geteuid() + 1, os.getegid()), os.geteuid()))
    assert told["state.store"].severity == "critical"


def test_a_web_that_is_the_keepers_user_or_root_is_found() -> None:
    assert by_id(state.web_user(Owner(1000, 1000), 1000))["web.user"].severity == "major"
    assert by_id(state.web_user(Owner(0, 0), 0))["web.user"].severity == "major"


def test_a_wall_with_a_gap_is_critical() -> None:
    found = {**UNDER_STRAIN, "memory beyond the limit": "not stopped"}
    told = by_id(wall.judge("limits", UNDER_STRAIN, found))
    wrong = {id: finding.severity for id, finding in told.items() if finding.severity != "ok"}
    assert wrong == {"limits.memory_beyond_the_limit": "critical"}


def nginx(root: Path, site: str, bind: str = "127.0.0.1:5000") -> dict[str, Finding]:
    """Debian's own nginx.conf, with a site of ours where it includes them."""
    (root / "etc/nginx/conf.d").mkdir(parents=True, exist_ok=True)
    text = (CAPTURED / "debian-nginx.conf").read_text().replace("/etc/nginx/", f"{root}/etc/nginx/")
    (root / "etc/nginx/nginx.conf").write_text(text)
    (root / "etc/nginx/conf.d/sandbox.conf").write_text(site)
    return by_id(proxy.examine(configuration.load({"SANDBOX_BIND": bind}), root))


SHIPPED = (ROOT / "deploy" / "nginx.conf").read_text()


def test_the_shipped_nginx_configuration_is_right(tmp_path: Path) -> None:
    told = nginx(tmp_path, SHIPPED)
    assert {id: one.found for id, one in told.items() if one.severity not in ("ok", "note")} == {}
    assert {"proxy.buffering", "proxy.patience", "proxy.tls", "proxy.address"} <= set(told)
    assert told["proxy.connections"].found == "worker_connections 768"


@pytest.mark.parametrize(
    ("shipped", "instead", "id"),
    [
        ("proxy_buffering off;", "", "proxy.buffering"),
        ("proxy_buffering off;", "proxy_buffering on;", "proxy.buffering"),
        ("gzip off;", "gzip on;", "proxy.compression"),
        ("gzip off;", "", "proxy.compression"),  # Debian's own configuration switches it on
        ("client_max_body_size 80m;", "", "proxy.body"),
        ("proxy_read_timeout 7300s;", "proxy_read_timeout 10m;", "proxy.patience"),
        ("proxy_set_header X-Forwarded-For $remote_addr;", "", "proxy.address"),
        ("proxy_set_header X-Forwarded-For $remote_addr;",
         "proxy_set_header X-Forwarded-For $http_x_forwarded_for;", "proxy.address"),
        ("proxy_set_header Upgrade $http_upgrade;", "", "proxy.websocket"),
        ("location / {\n        proxy_pass",
         "location / {\n proxy_set_header A b;\n proxy_pass", "proxy.address"),
    ],
)  # fmt: skip
def test_an_nginx_that_holds_back_or_refuses_is_found(
    tmp_path: Path, shipped: str, instead: str, id: str
) -> None:
    assert SHIPPED.count(shipped) == 1
    told = nginx(tmp_path, SHIPPED.replace(shipped, instead))
    assert told[id].severity in ("minor", "major")


def test_an_nginx_of_other_peoples_is_not_ours(tmp_path: Path) -> None:
    """It passes requests on to another port; a server that only this machine reaches needs none."""
    told = nginx(tmp_path, SHIPPED, "127.0.0.1:5001")
    assert list(told) == ["proxy.there"] and told["proxy.there"].severity == "ok"
    assert nginx(tmp_path, SHIPPED, "0.0.0.0:5000")["proxy.there"].severity == "major"


@pytest.mark.parametrize("text", ["server {", "}", "{ }", "a } b;"])
def test_a_configuration_that_nginx_would_refuse_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        nginx_conf.parse(text)


@pytest.mark.parametrize(("days", "severity"), [(60, "ok"), (14, "major"), (3, "critical"), (-1, "critical")])
def test_a_certificate_that_ends_soon_is_found(days: float, severity: str) -> None:
    told = by_id(public.judge_certificate("TLSv1.3", 1e9 + days * DAY + 1, 1e9))
    assert told["public.certificate"].severity == severity


@pytest.mark.parametrize("url", ["sandbox.example.org", "ftp://x", "https://", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be a URL"):
        public.Door.at(url, "")


def test_what_an_earlier_version_has_left_is_found(tmp_path: Path) -> None:
    """A unit by which systemd changes owners, what came of that, and a file that lowers settings."""
    root, volumes = tmp_path / "root", tmp_path / "volumes"
    (volumes / "1" / "files").mkdir(parents=True)
    os.chown(volumes / "1" / "files", 1000, 1000)
    assert {one.severity for one in leftovers.examine(root, volumes)} == {"ok"}
    unit = root / "etc/systemd/system/sandbox-keeper.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\n# StateDirectory\n")
    assert by_id(leftovers.examine(root, volumes))["leftovers.unit"].severity == "ok"
    unit.write_text("[Service]\nStateDirectory=sandbox-server\n")
    (root / "etc/sysctl.d").mkdir()
    (root / "etc/sysctl.d/60-sandbox-server.conf").touch()
    os.chown(volumes / "1" / "files", 0, 0)
    told = by_id(leftovers.examine(root, volumes))
    found = [told[f"leftovers.{name}"].severity for name in ("unit", "owners", "sysctls")]
    assert found == ["critical", "major", "minor"]
