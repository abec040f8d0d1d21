"""Runs inside the user's Python process: takes an order, runs the code, reports. Standard library only.

It shares its process with the code that it runs, so nobody trusts it; it only has to be right for code that
means well. SIGINT is ignored except while the user's code runs, where it is a KeyboardInterrupt.
"""

import ast
import contextlib
import json
import linecache
import os
import signal
import sys
import traceback
import types

VALUE_LIMIT = 256 * 1024
ERROR_LIMIT = 64 * 1024
_IS_COROUTINE = 0x80  # inspect.CO_COROUTINE, without the cost of importing inspect


def main():
    orders = os.fdopen(os.dup(0), "r", encoding="utf-8")
    reports, ready = sys.argv[1:]
    point(os.devnull, os.devnull, os.devnull)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.argv = [""]
    sys.path[0] = ""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    process = os.getpid()
    tell(reports, {"token": ready, "status": 0})
    for number, line in enumerate(orders, 1):
        with open(line.rstrip("\n"), encoding="utf-8") as file:
            order = json.load(file)
        report = obey(order, module.__dict__, f"<command {number}>")
        if os.getpid() != process:
            os._exit(0)  # a fork of the user's that ran on to here: only the process we know may answer
        tell(reports, {"token": order["token"], **report})


def tell(reports, report):
    with open(reports, "wb") as file:
        file.write(json.dumps(report, ensure_ascii=False).encode("utf-8", "replace") + b"\0")


def obey(order, namespace, name):
    before, saved_env, entered = here(), dict(os.environ), None
    if order["cwd"]:
        try:
            os.chdir(order["cwd"])
        except OSError:
            release(order)
            return {"status": 1, "no_directory": True, "cwd": before}
        entered = here()
    os.environ.update(order["env"])
    point(order["stdin"], order["stdout"], order["stderr"])
    reopen_streams()
    with open(order["command"], encoding="utf-8", newline="") as file:
        report = run(file.read(), namespace, name)
    point(os.devnull, os.devnull, os.devnull)
    for key in order["env"]:
        restore(key, saved_env)
    if entered and before and here() == entered:
        os.chdir(before)
    report["cwd"] = here()
    return report


def release(order):
    """Open and close the pipes, so that nobody waits for a command that will not run."""
    point(order["stdin"], order["stdout"], order["stderr"])
    point(os.devnull, os.devnull, os.devnull)


def restore(key, saved_env):
    if key in saved_env:
        os.environ[key] = saved_env[key]
    else:
        os.environ.pop(key, None)


def here():
    try:
        return os.getcwd()
    except OSError:
        return ""


def point(stdin, stdout, stderr):
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # whatever the code has put there instead
            stream.flush()
    for fd, path, flags in ((0, stdin, os.O_RDONLY), (1, stdout, os.O_WRONLY), (2, stderr, os.O_WRONLY)):
        opened = os.open(path, flags)
        if opened == fd:  # the code had closed it
            os.set_inheritable(fd, True)
            continue
        os.dup2(opened, fd)
        os.close(opened)


def reopen_streams():
    """Code may close what it prints to; the next command gets it back."""
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = getattr(sys, name, None)
        if stream is None or getattr(stream, "closed", False):
            fresh = os.fdopen(fd, mode, 1, encoding="utf-8", errors="backslashreplace", closefd=False)
            setattr(sys, name, fresh)
            setattr(sys, f"__{name}__", fresh)


def run(source, namespace, name):
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            value = evaluate(source, namespace, name)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except SystemExit as exc:
        return {"status": exit_status(exc)}
    except BaseException as exc:  # the edge of the user's program: whatever it raises is its result
        return {"status": 1, "error": told(exc)}
    return {"status": 0, "value": value}


def evaluate(source, namespace, name):
    """Run the code; the repr of its last statement if that is an expression with a value."""
    tree = ast.parse(source, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    execute(compile(tree, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
    if last is None:
        return None
    value = execute(compile(last, name, "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
    namespace["_"] = value
    return None if value is None else shorten(repr(value), VALUE_LIMIT)


def execute(code, namespace):
    result = eval(code, namespace)
    if code.co_flags & _IS_COROUTINE:
        import asyncio

        return asyncio.run(result)
    return result


def told(exc):
    """The traceback as Python prints it, without the frames before the user's own code."""
    trace = exc.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<command "):
        trace = trace.tb_next
    try:
        text, message = "".join(traceback.format_exception(type(exc), exc, trace)), str(exc)
    except BaseException as worse:  # an exception of the user's whose own text fails
        text = message = f"{type(exc).__name__}, and its text could not be told: {type(worse).__name__}"
    # The user's code may have closed or replaced it; the report still has the text.
    with contextlib.suppress(Exception):
        sys.stderr.write(text)
    return {
        "name": type(exc).__name__,
        "message": shorten(message, ERROR_LIMIT),
        "traceback": shorten(text, ERROR_LIMIT),
    }


def exit_status(exc):
    if exc.code is None:
        return 0
    if isinstance(exc.code, int):
        return exc.code & 0xFF
    with contextlib.suppress(Exception):
        print(exc.code, file=sys.stderr)
    return 1


def shorten(text, limit):
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} characters more)"


main()
