"""What the endpoints about one session and about single commands take and give, for /openapi.json."""

from __future__ import annotations

from pydantic import BaseModel

from server.api import answers, run_models, session_models

BODIES: dict[str, type[BaseModel]] = {
    "sessions.extend": session_models.Extend,
    "sessions.pause": session_models.Pause,
    "run.run": run_models.RunOnce,
}
ANSWERS: dict[str, tuple[int, type[BaseModel] | None, str]] = {
    "sessions.get": (200, answers.SessionAnswer, "One session"),
    "sessions.delete": (204, None, "Close a session"),
    "sessions.extend": (200, answers.SessionAnswer, "Start the lease anew, with another length if given"),
    "run.run": (200, answers.Result, "Run one command in a fresh sandbox that is gone afterwards"),
    "sessions.pause": (200, answers.SessionAnswer, "Freeze a session, or take its sandbox, until it is used"),
    "sessions.resume": (200, answers.SessionAnswer, "Wake a session, as any use of it does"),
}
