"""sandbox-server: one isolated, limited Linux container for every user of every tenant."""

__version__ = "0.1.0"
