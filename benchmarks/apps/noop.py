"""The floor: what Flask and gunicorn cost when nothing is done."""

from flask import Flask

app = Flask(__name__)


@app.get("/")
def nothing() -> dict[str, str]:
    return {}
