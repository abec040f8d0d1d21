"""What the web side may ask of the keeper: a few typed verbs. No container option and no path crosses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from server.config import Config
from server.keeper.datasets import Datasets
from server.keeper.doctor.examination import Doctor
from server.keeper.doctor.grading import report
from server.keeper.furnishing import Furnishing
from server.keeper.leaks import Leaks
from server.keeper.meters import Meters
from server.keeper.names import identifier
from server.keeper.runtime import Problem
from server.keeper.sampling import Sampler
from server.keeper.sandboxes import Sandboxes
from server.keeper.selfcheck import SelfCheck
from server.keeper.sleeping import Sleeping
from server.keeper.snapshotting import Snapshotting
from server.keeper.vitals import Vitals
from server.keeper.waiting import Waiting
from server.keeper.wanted import Wanted
from server.records import session_of

Verb = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Verbs:
    """Everything a verb needs. Requests come from the web workers; they are checked all the same."""

    config: Config
    sandboxes: Sandboxes
    vitals: Vitals
    snapshotting: Snapshotting
    sleeping: Sleeping
    furnishing: Furnishing
    waiting: Waiting
    datasets: Datasets
    selfcheck: SelfCheck
    leaks: Leaks
    sampler: Sampler
    meters: Meters
    doctor: Doctor
    concern: str | None
    problems: Callable[[], dict[str, Problem]]  # of the engine

    def table(self) -> dict[str, Verb]:
        return {
            "open": self.open,
            "close": self.close,
            "queue": self.queue,
            "pause": self.pause,
            "resume": self.resume,
            "examine": self.examine,
            "snapshot": self.snapshot,
            "restore": self.restore,
            "drop": self.drop,
            "measure": self.measure,
            "disk_used": self.disk_used,
            "datasets": self.list_datasets,
            "usage": self.usage,
            "metrics": self.metrics,
            "check": self.check,
            "leaks": self.count_leaks,
            "doctor": self.examine_all,
        }

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        wanted = self._wanted(request)
        if request["first"] is not True:
            self.sandboxes.await_first(wanted.session)
        self.sandboxes.open(wanted)
        return {}

    def close(self, request: dict[str, Any]) -> dict[str, Any]:
        close = self.sandboxes.removals.soon if request["soon"] is True else self.sandboxes.close
        close(identifier(request["sandbox"]))
        return {}

    def pause(self, request: dict[str, Any]) -> dict[str, Any]:
        self.sleeping.pause(identifier(request["session"]), request["cold"] is True)
        return {}

    def resume(self, request: dict[str, Any]) -> dict[str, Any]:
        reason = "asked" if request["reason"] == "asked" else "used"
        self.sleeping.resume(identifier(request["session"]), reason)
        return {}

    def queue(self, request: dict[str, Any]) -> dict[str, Any]:
        """`peer` is the connection, put there by whoever has read the request from it."""
        draft = session_of(request["draft"])
        self._wanted({**vars(draft), "session": draft.id, "env": {}})
        identifier(draft.volume)
        if draft.state != "opening":
            raise ValueError("state")
        return {"placed": self.waiting.place(draft, request["peer"], float(request["seconds"]))}

    def examine(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"cause": self.vitals.examine(identifier(request["session"]))}

    def snapshot(self, request: dict[str, Any]) -> dict[str, Any]:
        session, snapshot = identifier(request["session"]), identifier(request["snapshot"])
        return {"size": self.snapshotting.take(session, snapshot)}

    def restore(self, request: dict[str, Any]) -> dict[str, Any]:
        self.snapshotting.restore(identifier(request["session"]), identifier(request["snapshot"]))
        return {}

    def drop(self, request: dict[str, Any]) -> dict[str, Any]:
        """A volume may be named that somebody owns: then it stays."""
        self.furnishing.drop(identifier(request["volume"]))
        self.furnishing.drop_freed()
        self.waiting.ring()
        return {}

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"used": [self.furnishing.used(identifier(volume)) for volume in request["volumes"][:1000]]}

    def disk_used(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"used": self.furnishing.used_by(str(request["tenant"]))}

    def list_datasets(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"datasets": self.datasets.list()}

    def usage(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.sampler.tell(identifier(request["session"]), float(request["seconds"]))

    def metrics(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"text": self.meters.text()}

    def check(self, request: dict[str, Any]) -> dict[str, Any]:
        """`words` are the engine's own, by the same names as the problems: for the operator alone."""
        problems = self.problems()
        if (failing := self.sandboxes.failing() or self.selfcheck.trouble()) is not None:
            problems = {**problems, "sandbox": failing}
        return {
            "doing": self.selfcheck.doing(),
            "problems": {name: problem.detail for name, problem in problems.items()},
            "words": {name: problem.words for name, problem in problems.items() if problem.words},
            "wall": self.selfcheck.differences(),
            "storage": self.concern or self.furnishing.concern(),
        }

    def count_leaks(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"leaks": self.leaks.count()}

    def examine_all(self, request: dict[str, Any]) -> dict[str, Any]:
        return report(self.doctor.examine(self.furnishing.stock(self.concern)))

    def _wanted(self, request: dict[str, Any]) -> Wanted:
        memory, cpus, disk, env = (request[name] for name in ("memory", "cpus", "disk", "env"))
        if request["image"] not in self.config.images:
            raise ValueError("image")
        if type(memory) is not int or not 0 < memory <= self.config.memory_max:
            raise ValueError("memory")
        if type(cpus) not in (int, float) or not 0 < cpus <= self.config.cpus_max:
            raise ValueError("cpus")
        if type(disk) is not int or not 0 < disk <= self.config.disk_max:
            raise ValueError("disk")
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise ValueError("env")
        return Wanted(identifier(request["session"]), request["image"], memory, float(cpus), disk, env)
