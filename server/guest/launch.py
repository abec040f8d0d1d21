"""What the image starts: `python3 -IS /opt/sandbox` finds this file as __main__.py beside the package."""

from guest.main import main  # type: ignore[import-not-found] # found in the image, where this file lies

main()
