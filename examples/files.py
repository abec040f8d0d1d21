"""Files in and out: write, run, get what was made, go back to how it was.

python examples/files.py
"""

import tempfile
from pathlib import Path

from sandbox_client import SandboxClient

PROGRAM = """
import csv, pathlib
rows = list(csv.reader(open("data/sales.csv")))[1:]
pathlib.Path("artifacts").mkdir(exist_ok=True)
pathlib.Path("artifacts/total.txt").write_text(str(sum(int(amount) for _, amount in rows)))
"""

with SandboxClient(checkpoint=True) as sandbox, tempfile.TemporaryDirectory() as here:
    sandbox.files.write("data/sales.csv", "month,amount\nmay,20\njune,22\n")
    sandbox.files.write("total.py", PROGRAM)

    result = sandbox.execute("python3 total.py", check=True)
    for artifact in result.artifacts:  # what this command left in artifacts/
        sandbox.download(artifact, here)
        print(Path(artifact.path).name, "says", Path(here, "total.txt").read_text())

    good = sandbox.snapshot("good")
    sandbox.execute("rm -rf data artifacts && echo oops > total.py")
    try:
        sandbox.files.read("data/sales.csv")
    except FileNotFoundError as error:
        print("lost:", error.filename)

    sandbox.undo()  # to before the last command
    print("undone:", [info.name for info in sandbox.files.list()])

    with sandbox.fork()[0] as copy:  # a sandbox of its own, with the same files
        copy.files.edit("data/sales.csv", "june,22", "june,80")
        copy.execute("python3 total.py")
        print("in the fork:", copy.files.read_text("artifacts/total.txt"))
    print("here still:", sandbox.files.read_text("artifacts/total.txt"))

    sandbox.download("data", Path(here, "data"))  # a whole directory
    print("downloaded:", sorted(path.name for path in Path(here, "data").iterdir()))
    sandbox.delete_snapshot(good)
