"""The keeper: the one process that sees the Docker Engine. It owns storage, opening, closing and expiry.

Nothing on the web side imports it; a few typed verbs over a unix socket are all that crosses the line.
"""
