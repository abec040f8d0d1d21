"""Output while it comes, a program in the background, and a conversation with it.

python examples/streaming.py
"""

from sandbox_client import PIPE, SandboxClient, StillRunning

with SandboxClient() as sandbox:
    for event in sandbox.stream("for i in 1 2 3; do echo step $i; sleep 0.2; done; echo oops >&2; exit 3"):
        if event.kind == "end" and event.result is not None:
            print("exit code", event.result.exit_code)
        elif event.text:
            print(f"{event.kind}: {event.text}", end="")

    result = sandbox.execute("echo heard at once; sleep 0.2", on_stdout=lambda text: print(text, end=""))
    print("the usual result:", repr(result.stdout))

    execution = sandbox.start("read name; echo hello, $name; sleep 60", stdin=PIPE)
    execution.send_input("Ada\n")
    try:
        execution.wait(timeout=0.5)
    except StillRunning as error:
        print(error)
    print("its log so far:", execution.logs(), end="")
    execution.kill()
    print("cancelled:", execution.wait().cancelled)
