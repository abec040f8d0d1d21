"""What the image starts, as /opt/sandbox/start.py: Python begins with a file sooner than with a package."""

import sys

sys.path.insert(0, "/opt/sandbox")  # an isolated Python does not look beside the file

from guest.main import main  # type: ignore[import-not-found]

main()
