"""gunicorn's settings, every number with its reason. Start: python -m gunicorn -c deploy/gunicorn.conf.py

Started by root (quickstart), the master stays root and does nothing but fork; the workers, which alone read
requests, become SANDBOX_WEB_USER. A systemd unit may start all of it as that user instead.
"""

from gevent import monkey

monkey.patch_all()  # before anything imports sockets or threads: the application is loaded by the master

import gc  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

from server.app import warm_up  # noqa: E402
from server.config import BadConfig, load  # noqa: E402
from server.instance import web_owner  # noqa: E402

try:
    _config = load(os.environ)
    warm_up(_config)  # by the master: workers need not be able to read Python's or our files
    gc.freeze()  # the collector leaves what is loaded alone, so that the workers go on sharing it
except BadConfig as exc:
    sys.exit(f"web: {exc}")

wsgi_app = "server.app:create_app()"
bind = _config.bind
workers = _config.web_workers

# gevent: a waiting request costs a greenlet, not a thread, and half-open connections freeze nobody.
worker_class = "server.worker.Worker"
# Connections a worker holds at once. Each may wait for a long command; beyond this they queue in the kernel.
worker_connections = 2000
# The kernel's queue of connections not yet accepted: a burst of clients, a few times over.
backlog = 2048
# Seconds without a sign of life from the worker's loop, not the length of a request: gevent workers give it
# while requests wait. A loop that is stuck this long is broken.
timeout = 60
# A stop or reload lets running requests end for this long; the commands themselves go on in their sandboxes.
graceful_timeout = 30
# Seconds for a request's head to arrive, on a new connection and on a kept one: silent peers are gone after
# this. deploy/nginx.conf keeps its upstream connections for less, so that nginx is the side that closes.
keepalive = 25

# Modules are loaded once, by the warm-up above, and shared; what is built of them belongs to one worker.
preload_app = False

# Request lines and headers: long enough for any client of ours, short enough to be cheap to refuse.
limit_request_line = 8190
limit_request_fields = 64
limit_request_field_size = 8190

# Drop what the workers do not need. Empty user: stay who started it.
if os.geteuid() == 0 and _config.web_user:
    user, group = web_owner(_config).uid, web_owner(_config).gid
    initgroups = True

# No control socket. No access log: the application writes one structured line for each request.
control_socket_disable = True
logger_class = "server.worker.Log"
# The proxy's word on the client's address is taken only from this machine.
forwarded_allow_ips = "127.0.0.1,::1"
# Nobody says in a header which path is meant.
forwarder_headers = ""
