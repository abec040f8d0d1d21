"""What a command meets, over HTTP, in a real sandbox."""

from __future__ import annotations

from sandbox_client import SandboxClient


def test_the_shell_keeps_directory_variables_and_functions(sandbox: SandboxClient) -> None:
    sandbox.execute("cd /tmp; export A=1; f() { echo f$1; }")
    result = sandbox.execute("pwd; echo $A; f 2")
    assert result.stdout == "/tmp\n1\nf2\n"
    assert result.cwd == "/tmp"
