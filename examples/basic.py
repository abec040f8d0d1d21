"""The sandbox in a dozen lines: a shell that remembers, Python that remembers, and a failure told plainly.

python examples/basic.py
"""

from sandbox_client import CommandFailed, SandboxClient

with SandboxClient() as sandbox:
    sandbox.execute("mkdir -p demo && cd demo && export NAME=world")
    result = sandbox.execute('echo "hello $NAME" | tee greeting.txt; pwd')
    print(result.output, end="")

    sandbox.run_python("words = open('/workspace/demo/greeting.txt').read().split()")
    print(sandbox.run_python("len(words), words[-1]").value)

    result = sandbox.execute("sleep 60", timeout=1)
    print("timed out:", result.timed_out)

    print(sandbox.execute("tr a-z A-Z", stdin="still here, after the timeout\n").stdout, end="")

    try:
        sandbox.execute("ls /nowhere", check=True)
    except CommandFailed as error:
        print("failed:", error)
