"""What small peers do: a route that calls `exec_run`. Containers are looked up once, which flatters it."""

from functools import lru_cache

import docker
from docker.models.containers import Container
from flask import Flask, request

app = Flask(__name__)
client = docker.from_env()


@lru_cache
def container(name: str) -> Container:
    return client.containers.get(name)


@app.post("/execute")
def execute() -> dict[str, object]:
    asked = request.get_json()
    result = container(asked["session_id"]).exec_run(asked["command"])
    return {"exit_code": result.exit_code, "output": result.output.decode(errors="replace")}
