"""What a container uses, from control groups of either version; and how samples of it are kept."""

from __future__ import annotations

from pathlib import Path

from server.keeper.runtime import Usage, cgroups
from server.keeper.series import Series

ID = "4f" * 32


def write(group: Path, **files: str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (group / name.replace("__", ".")).write_text(text)


def unified(root: Path, place: str) -> Path:
    """As Linux 6.1 with systemd has them."""
    write(root, cgroup__controllers="cpuset cpu io memory hugetlb pids rdma\n")
    group = root / place
    write(
        group,
        cpu__stat="usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\nnr_periods 7\n",
        memory__current="30000000\n",
        memory__stat="anon 20000000\nfile 9000000\ninactive_file 4000000\nactive_file 5000000\n",
        memory__peak="45000000\n",
        pids__current="6\n",
    )
    return group


def test_version_2_is_read_where_systemd_keeps_it(tmp_path: Path) -> None:
    unified(tmp_path, f"system.slice/docker-{ID}.scope")
    groups = cgroups.find(ID, 0, tmp_path)
    assert groups is not None and cgroups.read(groups) == Usage(2.5, 26_000_000, 45_000_000, 6)


def test_a_kernel_without_a_peak_leaves_it_untold(tmp_path: Path) -> None:
    (unified(tmp_path, f"docker/{ID}") / "memory.peak").unlink()
    groups = cgroups.find(ID, 0, tmp_path)
    assert groups is not None and cgroups.read(groups) == Usage(2.5, 26_000_000, None, 6)


def test_version_1_is_read_from_a_group_for_each_controller(tmp_path: Path) -> None:
    write(tmp_path / "cpuacct" / "docker" / ID, cpuacct__usage="1500000000\n")
    write(tmp_path / "pids" / "docker" / ID, pids__current="3\n")
    write(
        tmp_path / "memory" / "docker" / ID,
        memory__usage_in_bytes="9000000\n",
        memory__max_usage_in_bytes="11000000\n",
        memory__stat="cache 1\ninactive_file 1\ntotal_cache 3000000\ntotal_inactive_file 1000000\n",
    )
    groups = cgroups.find(ID, 0, tmp_path)
    assert groups is not None and cgroups.read(groups) == Usage(1.5, 8_000_000, 11_000_000, 3)


def test_of_a_container_that_is_gone_nothing_is_told(tmp_path: Path) -> None:
    group = unified(tmp_path, f"docker/{ID}")
    groups = cgroups.find(ID, 0, tmp_path)
    for file in group.iterdir():
        file.unlink()
    assert groups is not None and cgroups.read(groups) is None
    assert cgroups.find("0" * 64, 0, tmp_path) is None


def test_a_place_that_nobody_could_guess_is_read_off_a_process() -> None:
    """Version 1 with version 2 beside it, as systemd mounts them; and version 2 alone."""
    hybrid = "5:pids:/x/c\n4:memory:/x/b\n2:cpu,cpuacct:/x/a\n1:name=systemd:/y\n0::/y\n"
    assert cgroups.places_in(hybrid) == {"cpuacct": "x/a", "memory": "x/b", "pids": "x/c"}
    alone = cgroups.places_in("0::/user.slice/user@1000.service/docker-1.scope\n")
    assert set(alone.values()) == {"user.slice/user@1000.service/docker-1.scope"} and len(alone) == 3


def usage(seconds: float) -> Usage:
    return Usage(seconds, 1000, 2000, 3)


def test_cpus_are_those_in_use_since_the_sample_before() -> None:
    series = Series(10)
    series.add(100.0, "a", usage(5.0), 7)
    series.add(110.0, "a", usage(12.5), None)
    assert list(series.since(0)) == [
        [100.0, 5.0, None, 1000, 2000, 3, 7],
        [110.0, 12.5, 0.75, 1000, 2000, 3, None],
    ]
    assert series.row(112.0, "a", usage(14.5), 7) == [112.0, 14.5, 1.0, 1000, 2000, 3, 7]


def test_another_sandbox_begins_anew() -> None:
    series = Series(10)
    series.add(100.0, "a", usage(500.0), None)
    series.add(110.0, "b", usage(0.5), None)
    series.add(120.0, "b", None, None)
    assert [row[2] for row in series.since(0)] == [None, None, None]


def test_the_oldest_sample_goes_when_there_are_too_many() -> None:
    series = Series(3)
    for at in range(1, 8):
        series.add(float(at), "a", usage(at), None)
    assert [row[0] for row in series.since(0)] == [5.0, 6.0, 7.0]
    assert [row[0] for row in series.since(6.5)] == [7.0]
    assert series.newest == 7.0
