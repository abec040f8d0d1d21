"""Sandboxes as Docker containers. The only module that imports docker.

Two engine calls open a sandbox: create and start.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import docker
import docker.errors
import requests.exceptions
from docker.utils import kwargs_from_env

from server.config import Config
from server.keeper.names import identifier
from server.keeper.runtime import Problem, RuntimeFailed, Seen, Spec, Unreached, Usage, cgroups
from server.keeper.runtime.causes import causes
from server.keeper.runtime.facts import EngineFacts, facts_of
from server.keeper.runtime.hearing import Heard, HeardCalls
from server.keeper.runtime.oci import Oci, identify
from server.keeper.runtime.options import INSTANCE, SANDBOX, UID, Options
from server.keeper.runtime.socket_memory import limit_socket_buffers

_CALL_SECONDS = 60
_QUICK_SECONDS = 3  # for a look at whether it answers: who asks waits five
_NOT_FROZEN = "unable to freeze"
_PATIENCE = (0.1, 0.2, 0.4, 0.8, 1.6)
_GVISOR_FAILED = 1  # what is left of a sandbox whose kernel was killed
_STOPPED_BY_ENGINE = 75  # the guest's exit code when the engine asks it to stop
_GONE_AT_START = 255  # an engine says so of a container that it misses when it starts: after a reboot

_NOBODY_THERE = (ConnectionRefusedError, FileNotFoundError)
_FAILURES = (docker.errors.DockerException, requests.exceptions.RequestException)


class _Api(HeardCalls, docker.APIClient):
    ordinary = frozenset({*range(200, 400), 404, 409})  # also that it is there already, or gone


class DockerRuntime:
    def __init__(self, config: Config, instance: str, socket_gid: int, heard: Heard | None = None) -> None:
        self._instance = instance
        self._options = Options(config, instance, socket_gid)
        self._named = config.oci_runtime
        self._oci: Oci | None = None
        self._faltered = False
        environment = {"DOCKER_HOST": config.docker_host} if config.docker_host else None
        kwargs = kwargs_from_env(environment=environment)
        try:
            self._quick = _Api(timeout=_QUICK_SECONDS, version="auto", **kwargs)
            self._api = _Api(timeout=_CALL_SECONDS, version=self._quick.api_version, **kwargs)
        except _FAILURES as exc:
            raise _explained(exc) from exc
        self._api.heard = heard
        self._groups: dict[str, cgroups.Groups | None] = {}

    def create(self, spec: Spec) -> None:
        name = _name(spec.id)
        options = self._options.of(spec, self._named, self.oci().is_gvisor)
        try:
            made = self._api.create_container_from_config(options, name)  # type: ignore[no-untyped-call]
        except docker.errors.APIError as exc:
            if exc.status_code != 409:  # 409: it is there already
                raise self._failed(exc) from exc
            return
        except _FAILURES as exc:
            raise self._failed(exc) from exc
        try:
            self._api.start(made["Id"])
        except _FAILURES as exc:
            raise RuntimeFailed(str(failed := self._failed(exc)), failed.words) from exc
        limit_socket_buffers(made["Id"], spec.memory)

    def inspect(self, sandbox: str) -> Seen | None:
        try:
            told = self._api.inspect_container(_name(sandbox))
        except docker.errors.NotFound:
            return None
        except _FAILURES as exc:
            raise self._failed(exc) from exc
        return _seen(told["Config"]["Labels"], told["State"])

    def wait_dead(self, sandbox: str, seconds: float) -> None:
        try:
            self._api.wait(_name(sandbox), timeout=round(seconds))
        except docker.errors.NotFound:
            return
        except requests.exceptions.RequestException:
            return  # still alive when time was up; the caller looks again
        except _FAILURES as exc:
            raise self._failed(exc) from exc

    def seen(self) -> Iterable[Seen]:
        try:
            found = self._api.containers(all=True, filters={"label": f"{INSTANCE}={self._instance}"})
        except _FAILURES as exc:
            raise self._failed(exc) from exc
        for container in found:
            labels = container["Labels"]
            if container["State"] in ("running", "paused"):
                yield _seen(labels, {"Running": True, "Paused": container["State"] == "paused"})
            else:
                seen = self.inspect(labels[SANDBOX])
                if seen is not None:
                    yield seen

    def pause(self, sandbox: str) -> None:
        """On a busy host, or in a sandbox whose CPU quota is used up, processes may not stop in time."""
        for patience in _PATIENCE:
            try:
                return self._unless_conflict(self._api.pause, sandbox)
            except RuntimeFailed as exc:
                if _NOT_FROZEN not in exc.words:
                    raise
            time.sleep(patience)
        self._unless_conflict(self._api.pause, sandbox)

    def resume(self, sandbox: str) -> None:
        self._unless_conflict(self._api.unpause, sandbox)

    def _unless_conflict(self, call: Callable[[str], None], sandbox: str) -> None:
        """The engine says 409 (or, when older, 500) of what is paused or resumed already."""
        try:
            call(_name(sandbox))
        except docker.errors.APIError as exc:
            if exc.status_code not in (409, 500) or "paused" not in str(exc.explanation):
                raise self._failed(exc) from exc
        except _FAILURES as exc:
            raise self._failed(exc) from exc

    def usage(self, sandbox: str) -> Usage | None:
        """The engine is asked where a sandbox's groups are, once; the kernel for what is in them."""
        if sandbox not in self._groups:
            try:
                told = self._api.inspect_container(_name(sandbox))
            except _FAILURES:
                return None
            self._groups[sandbox] = cgroups.find(told["Id"], told["State"]["Pid"])
        groups = self._groups[sandbox]
        return None if groups is None else cgroups.read(groups)

    def delete(self, sandbox: str) -> None:
        self._groups.pop(sandbox, None)
        self._thaw_gvisor(sandbox)
        try:
            self._api.remove_container(_name(sandbox), force=True, v=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as exc:
            if exc.status_code != 409:
                raise self._failed(exc) from exc
            self._await_removal(sandbox)  # somebody else is at it right now
        except _FAILURES as exc:
            raise self._failed(exc) from exc

    def _thaw_gvisor(self, sandbox: str) -> None:
        """Frozen, it does not notice that it is killed, and the engine waits ten seconds for it."""
        with contextlib.suppress(RuntimeFailed, *_FAILURES):
            if self.oci().is_gvisor:
                self._api.unpause(_name(sandbox))

    def _await_removal(self, sandbox: str) -> None:
        try:
            self._api.wait(_name(sandbox), timeout=_CALL_SECONDS, condition="removed")
        except docker.errors.NotFound:
            return
        except _FAILURES as exc:
            raise self._failed(exc) from exc

    def image_id(self, reference: str) -> str | None:
        try:
            return str(self._api.inspect_image(reference)["Id"])  # type: ignore[no-untyped-call]
        except docker.errors.ImageNotFound:
            return None
        except _FAILURES as exc:
            raise self._failed(exc) from exc

    def faltered(self) -> bool:
        faltered, self._faltered = self._faltered, False
        return faltered

    def _failed(self, exc: Exception) -> RuntimeFailed:
        self._faltered = True
        return _explained(exc)

    def facts(self) -> EngineFacts:
        try:
            return facts_of(self._api.info())
        except _FAILURES as exc:
            raise self._failed(exc) from exc

    def make_with(self, oci_runtime: str) -> None:
        self._named, self._oci = oci_runtime, None

    def oci(self) -> Oci:
        """Looked up once: it is the same until the engine's own settings change."""
        if self._oci is None:
            facts = self.facts()
            self._oci = identify(self._named or facts.default_runtime, facts)
        return self._oci

    def cpus(self) -> int:
        try:
            return int(self._api.info()["NCPU"])
        except _FAILURES as exc:
            raise _explained(exc) from exc

    def check(self, images: Iterable[str]) -> dict[str, Problem]:
        problems = {}
        try:
            self._quick.ping()
            for image in images:
                try:
                    self._quick.inspect_image(image)  # type: ignore[no-untyped-call]
                except docker.errors.ImageNotFound:
                    words = f"the image {image} is missing: run ./quickstart.sh, or correct SANDBOX_IMAGES"
                    problems["image"] = Problem(words)
        except _FAILURES as exc:
            problems["engine"] = _explained(exc).problem
        return problems


def _name(sandbox: str) -> str:
    return f"sandbox-{identifier(sandbox)}"


def _seen(labels: dict[str, str], state: dict[str, Any]) -> Seen:
    cause = None if state.get("Running") else _cause(state)
    return Seen(labels[SANDBOX], int(labels[UID]), cause, bool(state.get("Paused")))


def _cause(state: dict[str, Any]) -> str:
    """Why a container is dead, in one of the words of errors.CAUSES."""
    code = state.get("ExitCode")
    if code in (_STOPPED_BY_ENGINE, _GONE_AT_START):
        return "engine_stopped"
    if code == 137:
        return "oom" if state.get("OOMKilled") else "killed"
    return "oom" if code == _GVISOR_FAILED and state.get("OOMKilled") else "crashed"


def _explained(exc: Exception) -> RuntimeFailed:
    """A sentence for the caller; the engine's own words, which may name paths of the host, go to the log."""
    words = " ".join(str(getattr(exc, "explanation", None) or exc).split())[:500]
    if isinstance(exc, docker.errors.ImageNotFound):
        return RuntimeFailed(
            "The sandbox image is missing: the operator must build it (./quickstart.sh).", words
        )
    if isinstance(exc, docker.errors.APIError):
        return RuntimeFailed("The Docker Engine refused. The keeper's log says why.", words)
    kind = Unreached if any(type(one) in _NOBODY_THERE for one in causes(exc)) else RuntimeFailed
    return kind("The Docker Engine does not answer. Try again shortly.", words)
