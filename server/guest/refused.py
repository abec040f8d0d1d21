"""Why a request cannot be carried out, in words the server knows."""

from __future__ import annotations

import errno


class Refused(Exception):
    """The request cannot be carried out; `code` says why, `facts` what more there is to tell."""

    def __init__(self, code: str, **facts: int) -> None:
        super().__init__(code)
        self.code = code
        self.facts = facts


CODES = {
    errno.ENOENT: "not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.ETXTBSY: "permission_denied",
    errno.EBUSY: "permission_denied",
    errno.EISDIR: "is_directory",
    errno.ENOTDIR: "not_a_directory",
    errno.EEXIST: "already_exists",
    errno.ENOTEMPTY: "directory_not_empty",
    errno.ELOOP: "invalid_path",
    errno.ENAMETOOLONG: "invalid_path",
    errno.EINVAL: "invalid_path",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",  # the largest file is as large as the disk
    errno.EMLINK: "disk_full",
    errno.ENXIO: "not_a_regular_file",
    errno.ENODEV: "not_a_regular_file",
    errno.EAGAIN: "operation_timeout",  # a program of the user's holds a lease on the file
}


def refusal_of(exc: OSError) -> Refused:
    """What an error of the operating system about a file means."""
    return Refused(CODES.get(exc.errno or 0, "cannot_touch"))
