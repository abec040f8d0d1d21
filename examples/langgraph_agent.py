"""An agent that writes code, runs it in a sandbox, and has its work checked there.

    pip install langgraph
    python examples/langgraph_agent.py "Write primes.py that prints the primes below 50"

Without a model's key a script plays the model, so that it runs offline. With OPENAI_API_KEY or
ANTHROPIC_API_KEY set a real one does the work; MODEL names another than the default.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from sandbox_client import SandboxClient

try:
    from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
    from langchain_core.tools import BaseTool, tool
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition
except ImportError as exc:
    sys.exit(f"{exc}. This example needs langgraph: pip install langgraph")

TASK = "Write primes.py that prints the primes below 50, one on a line, and run it."
RULES = "You work in a Linux sandbox through the bash tool. Files in /workspace stay. Run what you write."
ANSWER_LIMIT = 10_000  # characters of output that a model gets to read


class State(MessagesState):
    files: str  # what the check found in the workspace


def bash_tool(sandbox: SandboxClient) -> BaseTool:
    """The whole of what an agent needs to work: a shell that remembers."""

    @tool
    def bash(command: str) -> str:
        """Run a bash command in the sandbox. The directory and variables last until the next command."""
        result = sandbox.execute(command, timeout=60)
        ending = "timed out" if result.timed_out else f"exit code {result.exit_code}"
        return f"{result.output[-ANSWER_LIMIT:]}\n[{ending}]"

    return bash


def build(sandbox: SandboxClient, model: Any) -> Any:
    """think <-> bash, until the model is done; then check."""
    tools = [bash_tool(sandbox)]
    thinker = model.bind_tools(tools)

    def think(state: State) -> dict[str, Any]:
        return {"messages": [thinker.invoke([SystemMessage(RULES), *state["messages"]])]}

    def check(state: State) -> dict[str, Any]:
        """A node of the graph may use the sandbox itself: here it looks at what is really there."""
        return {"files": sandbox.execute("ls -l /workspace", check=True).stdout}

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_node("bash", ToolNode(tools))
    graph.add_node("check", check)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition, {"tools": "bash", END: "check"})
    graph.add_edge("bash", "think")
    graph.add_edge("check", END)
    return graph.compile()


class ScriptedModel:
    """Plays a model: a mistake, its repair, and a last word."""

    COMMANDS = (
        "cat > primes.py <<'EOF'\n"
        "for n in range(2, 50):\n"
        "    if all(n % d for d in range(2, n)):\n"
        "        print(m)\n"
        "EOF\n"
        "python3 primes.py",
        "sed -i 's/print(m)/print(n)/' primes.py && python3 primes.py",
    )

    def bind_tools(self, tools: Sequence[BaseTool]) -> ScriptedModel:
        return self

    def invoke(self, messages: Sequence[AnyMessage]) -> AIMessage:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        if turn == len(self.COMMANDS):
            return AIMessage("primes.py prints the primes below 50.")
        call = {"name": "bash", "args": {"command": self.COMMANDS[turn]}, "id": f"call-{turn}"}
        return AIMessage("", tool_calls=[call])


def choose_model() -> Any:
    """A real model when a key is set, else the script."""
    try:
        if os.environ.get("ANTHROPIC_API_KEY"):
            from langchain_anthropic import ChatAnthropic

            return ChatAnthropic(model=os.environ.get("MODEL", "claude-sonnet-4-5"))
        if os.environ.get("OPENAI_API_KEY"):
            from langchain_openai import ChatOpenAI

            return ChatOpenAI(model=os.environ.get("MODEL", "gpt-5-mini"))
    except ImportError as exc:
        package = str(exc.name).split(".")[0].replace("_", "-")
        sys.exit(f"A model's key is set, but {package} is missing: pip install {package}")
    print("No OPENAI_API_KEY or ANTHROPIC_API_KEY: a script plays the model.\n")
    return ScriptedModel()


def main() -> None:
    task = " ".join(sys.argv[1:]) or TASK
    model = choose_model()
    with SandboxClient(metadata={"example": "langgraph"}) as sandbox:
        state = build(sandbox, model).invoke({"messages": [HumanMessage(task)]})
    for message in state["messages"]:
        message.pretty_print()
    print(f"\nIn the workspace:\n{state['files']}")


if __name__ == "__main__":
    main()
