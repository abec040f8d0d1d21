"""The shapes of what is asked and told about what a session uses."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from server.api.models import Request


class GetMetrics(Request):
    seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 3600.0


class UsageSample(BaseModel):
    """What a session uses at a moment; null is what cannot be told. The guest and all that it runs count."""

    at: str
    cpu_seconds: float | None = Field(description="Used since its sandbox began.")
    cpus: float | None = Field(description="In use on average since the sample before: 1 is one CPU.")
    memory: int | None = Field(description="Bytes, without cached files that the kernel may drop.")
    memory_peak: int | None = Field(description="Bytes, with cached files.")
    processes: int | None = Field(description="Processes and threads.")
    disk_used: int | None = Field(description="Bytes that its workspace holds.")


class SessionMetricsAnswer(BaseModel):
    session_id: str
    interval: float = Field(description="Seconds between samples.")
    cpus_limit: float
    memory_limit: int
    disk_limit: int
    now: UsageSample
    samples: list[UsageSample] = Field(description="Oldest first; 240 at most.")
