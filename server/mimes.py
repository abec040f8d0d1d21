"""What kind of data a file holds, told by its name alone."""

from __future__ import annotations

import mimetypes

ANYTHING = "application/octet-stream"
_PACKED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
_KNOWN = mimetypes.MimeTypes()  # Python's own table: a machine's would differ from one to the next
_MORE = {
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".toml": "application/toml",
    ".wasm": "application/wasm",
    ".webp": "image/webp",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
for _suffix, _kind in _MORE.items():
    _KNOWN.add_type(_kind, _suffix)


def mime_of(path: str) -> str:
    """With a slash before it a name cannot be taken for a URL."""
    kind, packed = _KNOWN.guess_type("/" + path)
    return kind or ANYTHING if packed is None else _PACKED.get(packed, ANYTHING)
