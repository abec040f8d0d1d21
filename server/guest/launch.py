"""What the image starts: `python3 -IS /opt/sandbox` finds this file as __main__.py beside the package."""

from guest.main import main

main()
