"""The version of this package, said once."""

__version__ = "0.1.0"
