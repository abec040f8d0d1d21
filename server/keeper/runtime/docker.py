"""Sandboxes as Docker containers. The only module that imports docker.

Every option is a line of docs/security.md. Two engine calls open a sandbox: create and start.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests.exceptions
from docker.utils import kwargs_from_env

from server.config import Config
from server.keeper.runtime import RuntimeFailed, Seen, Spec
from server.keeper.runtime.masked import MASKED_PATHS, READONLY_PATHS
from server.keeper.runtime.socket_memory import limit_socket_buffers

_INSTANCE = "sandbox-server.instance"
_SANDBOX = "sandbox-server.sandbox"
_UID = "sandbox-server.uid"
_CALL_SECONDS = 60
_STOPPED_BY_ENGINE = 75  # the guest's exit code when the engine asks it to stop
_MIB = 1 << 20
_ONLINE = "/sys/devices/system/cpu/online"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_FAILURES = (docker.errors.DockerException, requests.exceptions.RequestException)


class DockerRuntime:
    def __init__(self, config: Config, instance: str, socket_gid: int) -> None:
        self._config = config
        self._instance = instance
        self._socket_gid = socket_gid
        self._seccomp = (Path(__file__).parent / "seccomp.json").read_text()
        environment = {"DOCKER_HOST": config.docker_host} if config.docker_host else None
        kwargs = kwargs_from_env(environment=environment)
        try:
            self._api = docker.APIClient(timeout=_CALL_SECONDS, version="auto", **kwargs)
        except _FAILURES as exc:
            raise _explained(exc) from exc

    def create(self, spec: Spec) -> None:
        name = _name(spec.id)
        options = self._options(spec)
        try:
            made = self._api.create_container_from_config(options, name)  # type: ignore[no-untyped-call]
            self._api.start(made["Id"])
        except docker.errors.APIError as exc:
            if exc.status_code != 409:  # 409: it is there already
                raise _explained(exc) from exc
        except _FAILURES as exc:
            raise _explained(exc) from exc
        else:
            limit_socket_buffers(made["Id"], spec.memory)

    def inspect(self, sandbox: str) -> Seen | None:
        try:
            told = self._api.inspect_container(_name(sandbox))
        except docker.errors.NotFound:
            return None
        except _FAILURES as exc:
            raise _explained(exc) from exc
        return _seen(told["Config"]["Labels"], told["State"])

    def wait_dead(self, sandbox: str, seconds: float) -> None:
        try:
            self._api.wait(_name(sandbox), timeout=round(seconds))
        except docker.errors.NotFound:
            return
        except requests.exceptions.RequestException:
            return  # still alive when time was up; the caller looks again
        except _FAILURES as exc:
            raise _explained(exc) from exc

    def seen(self) -> Iterable[Seen]:
        try:
            found = self._api.containers(all=True, filters={"label": f"{_INSTANCE}={self._instance}"})
        except _FAILURES as exc:
            raise _explained(exc) from exc
        for container in found:
            labels = container["Labels"]
            if container["State"] in ("running", "paused"):
                yield _seen(labels, {"Running": True})
            else:
                seen = self.inspect(labels[_SANDBOX])
                if seen is not None:
                    yield seen

    def delete(self, sandbox: str) -> None:
        try:
            self._api.remove_container(_name(sandbox), force=True, v=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as exc:
            if exc.status_code != 409:  # 409: somebody else is removing it right now
                raise _explained(exc) from exc
        except _FAILURES as exc:
            raise _explained(exc) from exc

    def image_id(self, reference: str) -> str | None:
        try:
            return str(self._api.inspect_image(reference)["Id"])  # type: ignore[no-untyped-call]
        except docker.errors.ImageNotFound:
            return None
        except _FAILURES as exc:
            raise _explained(exc) from exc

    def check(self, images: Iterable[str]) -> dict[str, str]:
        problems = {}
        try:
            self._api.ping()
            for image in images:
                try:
                    self._api.inspect_image(image)  # type: ignore[no-untyped-call]
                except docker.errors.ImageNotFound:
                    problems["image"] = f"the image {image} is missing: build it with ./quickstart.sh"
        except _FAILURES as exc:
            problems["engine"] = str(_explained(exc))
        return problems

    def _options(self, spec: Spec) -> dict[str, Any]:
        return {
            "Image": spec.image,
            "Entrypoint": ["python3", "-IS", "/opt/sandbox"],
            "Cmd": [],
            "User": f"0:{self._socket_gid}",
            "Hostname": "sandbox",
            "WorkingDir": "/workspace",
            "Env": [f"PATH={_PATH}", "HOME=/workspace", "LANG=C.UTF-8", "TERM=xterm-256color"],
            "Labels": {_INSTANCE: self._instance, _SANDBOX: spec.id, _UID: str(spec.uid)},
            "NetworkDisabled": True,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": self._host_options(spec),
        }

    def _host_options(self, spec: Spec) -> dict[str, Any]:
        options: dict[str, Any] = {
            "NetworkMode": "none",
            "Dns": ["127.0.0.1"],  # otherwise the host's resolvers are copied into /etc/resolv.conf
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "CapAdd": ["SETUID", "SETGID", "KILL"],
            "SecurityOpt": ["no-new-privileges", f"seccomp={self._seccomp}"],
            "Memory": spec.memory,
            "MemorySwap": spec.memory,
            "NanoCpus": round(spec.cpus * 1e9),
            "PidsLimit": self._config.container_processes,
            # Above the host's own processes, far below the commands': in a sandbox short of memory they go
            # first, however much of their output the guest holds; on a host, sandboxes do.
            "OomScoreAdj": 50,
            "ShmSize": 16 * _MIB,
            "Tmpfs": {
                "/tmp": "rw,nosuid,nodev,exec,size=64m,mode=1777",
                "/run/shells": "rw,nosuid,nodev,noexec,size=32m,mode=711",
            },
            "Mounts": _mounts(spec),
            "Ulimits": self._ulimits(),
            "MaskedPaths": list(MASKED_PATHS),
            "ReadonlyPaths": list(READONLY_PATHS),
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
        }
        if self._config.oci_runtime:
            options["Runtime"] = self._config.oci_runtime
        return options

    def _ulimits(self) -> list[dict[str, Any]]:
        limits = {
            "core": (0, 0),
            "nofile": (1024, 4096),
            "memlock": (1 << 16, 1 << 16),
            "msgqueue": (819200, 819200),
            "sigpending": (1024, 1024),
            "fsize": (self._config.disk, self._config.disk),
        }
        return [{"Name": name, "Soft": soft, "Hard": hard} for name, (soft, hard) in limits.items()]


def _mounts(spec: Spec) -> list[dict[str, Any]]:
    mounts = [_bind(spec.run_dir, "/run/sandbox"), _bind(spec.cpus_online, _ONLINE, ReadOnly=True)]
    if spec.workspace is None:
        return [*mounts, {"Type": "volume", "Target": "/workspace"}]
    return [*mounts, _bind(spec.workspace, "/workspace")]


def _bind(source: Path, target: str, **options: bool) -> dict[str, Any]:
    private = {"Propagation": "private"}
    return {"Type": "bind", "Source": str(source), "Target": target, "BindOptions": private, **options}


def _name(sandbox: str) -> str:
    return f"sandbox-{sandbox}"


def _seen(labels: dict[str, str], state: dict[str, Any]) -> Seen:
    return Seen(labels[_SANDBOX], int(labels[_UID]), None if state.get("Running") else _cause(state))


def _cause(state: dict[str, Any]) -> str:
    """Why a container is dead, in one of the words of errors.CAUSES."""
    code = state.get("ExitCode")
    if code == _STOPPED_BY_ENGINE:
        return "engine_stopped"
    if code == 137:
        return "oom" if state.get("OOMKilled") else "killed"
    return "crashed"


def _explained(exc: Exception) -> RuntimeFailed:
    """A sentence for the caller; the engine's own words, which may name paths of the host, go to the log."""
    words = " ".join(str(getattr(exc, "explanation", None) or exc).split())[:500]
    if isinstance(exc, docker.errors.ImageNotFound):
        return RuntimeFailed(
            "The sandbox image is missing: the operator must build it (./quickstart.sh).", words
        )
    if isinstance(exc, docker.errors.APIError):
        return RuntimeFailed("The Docker Engine refused. The keeper's log says why.", words)
    return RuntimeFailed("The Docker Engine does not answer. Try again shortly.", words)
