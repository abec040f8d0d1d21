"""Which OCI runtime makes sandboxes where the operator leaves it open: crun, if it does as well as runc.

crun starts a container in less time. Whether it works on a host is known only when it was tried: it refuses
hybrid control groups, for one. The trial is the self-check that every start does anyway.
"""

from __future__ import annotations

import logging

from server.config import Config
from server.keeper.runtime import Runtime
from server.keeper.runtime.oci import identify
from server.keeper.selfcheck import Looked, SelfCheck, compare

_PREFERRED = "crun"

_log = logging.getLogger("sandbox.keeper")


def choose(config: Config, runtime: Runtime, selfcheck: SelfCheck) -> str:
    """Make it so, and say why; with another default than runc the operator has chosen already."""
    if config.oci_runtime:
        return "SANDBOX_OCI_RUNTIME names it"
    facts = runtime.facts()
    if identify(facts.default_runtime, facts).kind != "runc" or _PREFERRED not in facts.runtimes:
        return "the engine's default"
    runtime.make_with(_PREFERRED)
    trouble = _trouble(selfcheck.look_again())
    if trouble is None:
        _log.info("sandboxes are made with %s", _PREFERRED)
        return "quicker than the engine's default, and a sandbox of it was found to be as it should be"
    _log.warning("%s is not used: %s", _PREFERRED, trouble)
    runtime.make_with("")
    selfcheck.forget()
    return f"the engine's default; {_PREFERRED} was tried: {trouble}"


def _trouble(looked: Looked | str) -> str | None:
    if isinstance(looked, str):
        return looked
    return "; ".join(f"{name}: {what}" for name, what in compare(*looked).items()) or None
