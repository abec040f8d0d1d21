"""Paths of /proc and /sys that a sandbox sees empty, and those it may only read.

The engine replaces its own defaults with these lists, so they include the defaults. A path the kernel does
not have is skipped. A masked file is a bind of /dev/null: reading gives nothing, writing goes nowhere.

What programs need stays visible: cpuinfo, meminfo, stat, loadavg, uptime, version, filesystems and cgroups
of /proc; fs/cgroup, class/net, devices/system/cpu and devices/system/node of /sys.
"""

_ENGINE_DEFAULTS = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)

# Symbols, configuration and layout of the host's kernel.
_KERNEL = (
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/crypto",
    "/proc/dynamic_debug",
    "/proc/execdomains",
    "/proc/kallsyms",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/modules",
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/kernel/tainted",
    "/sys/kernel",
    "/sys/module",
    "/sys/power",
)

# The host's hardware and disks.
_HARDWARE = (
    "/proc/bus",
    "/proc/consoles",
    "/proc/devices",
    "/proc/diskstats",
    "/proc/dma",
    "/proc/driver",
    "/proc/fs",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/irq",
    "/proc/mdstat",
    "/proc/misc",
    "/proc/mtrr",
    "/proc/partitions",
    "/proc/swaps",
    "/sys/block",
    "/sys/bus",
    "/sys/class/block",
    "/sys/class/dmi",
    "/sys/dev",
    "/sys/devices/LNXSYSTM:00",
    "/sys/devices/pci0000:00",
    "/sys/devices/platform",
    "/sys/devices/pnp0",
    "/sys/devices/system/cpu/vulnerabilities",
    "/sys/devices/system/memory",
    "/sys/devices/virtual/block",
    "/sys/devices/virtual/dmi",
    "/sys/devices/virtual/misc",
    "/sys/devices/virtual/thermal",
    "/sys/fs/bpf",
    "/sys/fs/btrfs",
    "/sys/fs/ext4",
    "/sys/fs/f2fs",
    "/sys/fs/fuse",
    "/sys/fs/pstore",
    "/sys/fs/xfs",
    "/sys/hypervisor",
)

# Counters of the whole machine, from which a neighbour's work can be read.
_ACTIVITY = (
    "/proc/buddyinfo",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/locks",
    "/proc/pagetypeinfo",
    "/proc/pressure",
    "/proc/schedstat",
    "/proc/slabinfo",
    "/proc/softirqs",
    "/proc/sys/fs/aio-nr",
    "/proc/sys/fs/dentry-state",
    "/proc/sys/fs/file-nr",
    "/proc/sys/fs/inode-nr",
    "/proc/sys/fs/inode-state",
    "/proc/vmallocinfo",
    "/proc/vmstat",
    "/proc/zoneinfo",
)

# What the nodes of the host's memory hold; what is not there is not masked.
_NODES = tuple(
    f"/sys/devices/system/node/node{number}/{name}"
    for number in range(8)
    for name in ("meminfo", "numastat", "vmstat")
)

MASKED_PATHS: tuple[str, ...] = _ENGINE_DEFAULTS + _KERNEL + _HARDWARE + _ACTIVITY + _NODES

# No masked folder may lie below one of these: crun would leave it writable. Masked files may.
READONLY_PATHS: tuple[str, ...] = (
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
)
