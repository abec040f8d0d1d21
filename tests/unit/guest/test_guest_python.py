"""The Python that stays: values, errors, interruption, and the same care for streams as a shell's."""

from __future__ import annotations

from guest_process import GuestProcess, errors_of, text


def test_variables_imports_and_functions_stay(guest: GuestProcess) -> None:
    guest.python("import math\nx = 20\ndef f(y):\n    return x + y")
    assert guest.python("f(1) + math.floor(1.5)").value == "22"


def test_the_value_is_that_of_the_last_expression(guest: GuestProcess) -> None:
    cases = [
        ("1 + 1", "2"),
        ("'a'", "'a'"),
        ("x = 1", None),
        ("None", None),
        ("for i in range(3): i", None),
        ("1;2;3", "3"),
        ("x = 1\nx  # the last line", "1"),
        ("def f(): return 7\nf()", "7"),
        ("# nothing at all", None),
    ]
    for code, value in cases:
        answer = guest.python(code)
        assert (answer.value, answer.exit_code, answer.error) == (value, 0, None), code
        assert (text(answer), errors_of(answer)) == ("", "")


def test_the_last_value_is_called_underscore(guest: GuestProcess) -> None:
    guest.python("40 + 2")
    assert guest.python("_ + 1").value == "43"


def test_stdout_and_stderr_come_apart(guest: GuestProcess) -> None:
    answer = guest.python("import sys, os\nprint('o')\nprint('e', file=sys.stderr)\nos.system('echo child')")
    assert (text(answer), errors_of(answer), answer.value) == ("o\nchild\n", "e\n", "0")


def test_an_error_has_its_name_message_and_a_clean_traceback(guest: GuestProcess) -> None:
    guest.python("def f():\n    raise KeyError('gone')")
    answer = guest.python("x = 1\nf()")
    assert answer.exit_code == 1
    assert answer.error is not None
    assert (answer.error["name"], answer.error["message"]) == ("KeyError", "'gone'")
    trace = answer.error["traceback"]
    assert trace.startswith('Traceback (most recent call last):\n  File "<command 2>", line 2')
    assert "raise KeyError('gone')" in trace
    assert "python_driver" not in trace
    assert errors_of(answer) == trace


def test_a_mistake_in_the_syntax_is_an_error_that_shows_the_line(guest: GuestProcess) -> None:
    answer = guest.python("x = 1\nif:\n  pass")
    assert answer.error is not None
    assert answer.error["name"] == "SyntaxError"
    assert "    if:\n      ^" in answer.error["traceback"]
    assert "python_driver" not in answer.error["traceback"]


def test_variables_survive_an_error(guest: GuestProcess) -> None:
    guest.python("x = 1\n1 / 0")
    assert guest.python("x").value == "1"


def test_a_timeout_interrupts_and_keeps_the_variables(guest: GuestProcess) -> None:
    answer = guest.python("x = 1\nimport time\nprint('on it')\nwhile True: time.sleep(0.01)", timeout=0.5)
    assert (answer.timed_out, answer.exit_code, answer.restarted) == (True, 124, False)
    assert text(answer) == "on it\n"
    assert answer.error is not None and answer.error["name"] == "KeyboardInterrupt"
    assert guest.python("x").value == "1"


def test_code_that_will_not_be_interrupted_costs_the_interpreter_not_the_session(guest: GuestProcess) -> None:
    guest.run("kept=in-bash")
    stubborn = "import time\nwhile True:\n  try:\n    time.sleep(9)\n  except KeyboardInterrupt: pass"
    answer = guest.python(stubborn, timeout=0.5)
    assert (answer.timed_out, answer.exit_code, answer.restarted) == (True, 124, True)
    assert guest.python("'fresh'").value == "'fresh'"
    assert text(guest.run("echo $kept")) == "in-bash\n"


def test_a_timeout_kills_what_the_code_started(guest: GuestProcess) -> None:
    code = "import subprocess as s\ns.Popen(['setsid', 'sleep', '81.25'])\ns.run(['sleep', '82.25'])"
    assert guest.python(code, timeout=0.7).timed_out
    assert not guest.alive(r"sleep 8[12]\.25")


def test_exit_gives_its_status_without_an_error_and_keeps_the_state(guest: GuestProcess) -> None:
    guest.python("import sys\nx = 1")
    cases = {"sys.exit()": 0, "sys.exit(3)": 3, "sys.exit('no')": 1, "sys.exit(260)": 4, "exit(5)": 5}
    for code, status in cases.items():
        answer = guest.python(code)
        assert (answer.exit_code, answer.error, answer.restarted) == (status, None, False), code
    assert guest.python("x").value == "1"


def test_a_process_that_really_ends_is_told_and_replaced(guest: GuestProcess) -> None:
    answer = guest.python("import os\nprint('bye', flush=True)\nos._exit(9)")
    assert (answer.exit_code, answer.restarted, text(answer)) == (9, True, "bye\n")
    answer = guest.python("import os\nos.kill(os.getpid(), 11)")
    assert (answer.signal, answer.restarted) == ("SIGSEGV", True)
    assert guest.python("1").value == "1"


def test_await_works_at_the_top_level(guest: GuestProcess) -> None:
    assert (
        guest.python("import asyncio\nx = await asyncio.sleep(0, 5)\nawait asyncio.sleep(0, x + 1)").value
        == "6"
    )


def test_stdin_is_what_was_sent(guest: GuestProcess) -> None:
    assert guest.python("import sys\ninput(), sys.stdin.read()", stdin=b"a\nb\nc").value == "('a', 'b\\nc')"
    assert guest.python("sys.stdin.read()").value == "''"
    assert guest.python("sys.stdin.read()", stdin=b"again").value == "'again'"


def test_a_directory_and_variables_for_one_command_are_gone_after_it(guest: GuestProcess) -> None:
    guest.python("import os\nos.environ['KEPT'] = 'old'")
    answer = guest.python(
        "os.getcwd(), os.environ['A'], os.environ['KEPT']", cwd="/usr", env={"A": "1", "KEPT": "x"}
    )
    assert answer.value == "('/usr', '1', 'x')"
    assert (
        guest.python("os.getcwd(), os.environ.get('A'), os.environ['KEPT']").value
        == f"('{guest.home}', None, 'old')"
    )


def test_a_directory_that_the_code_moves_to_stays(guest: GuestProcess) -> None:
    assert guest.python("import os\nos.chdir('/usr/lib')").cwd == "/usr/lib"
    assert guest.python("os.getcwd()").value == "'/usr/lib'"


def test_modules_beside_the_code_can_be_imported(guest: GuestProcess) -> None:
    guest.run("echo 'value = 11' > beside.py")
    assert guest.python("import beside\nbeside.value").value == "11"


def test_classes_of_the_session_can_be_pickled_and_found_in_main(guest: GuestProcess) -> None:
    guest.python("import pickle\nclass P:\n    x = 3")
    assert guest.python("pickle.loads(pickle.dumps(P())).x, __name__").value == "(3, '__main__')"


def test_a_value_whose_repr_fails_is_an_error(guest: GuestProcess) -> None:
    answer = guest.python("class Bad:\n    def __repr__(self): raise OSError('no repr')\nBad()")
    assert answer.error is not None
    assert (answer.error["name"], answer.exit_code) == ("OSError", 1)


def test_an_error_whose_text_fails_does_not_lose_the_interpreter(guest: GuestProcess) -> None:
    guest.python("x = 1")
    answer = guest.python("class Bad(Exception):\n    def __str__(self): raise OSError('no text')\nraise Bad")
    assert (answer.exit_code, answer.restarted) == (1, False)
    assert answer.error is not None and answer.error["name"] == "Bad"
    assert guest.python("x").value == "1"


def test_a_value_with_half_characters_does_not_lose_the_interpreter(guest: GuestProcess) -> None:
    guest.python("x = 1")
    assert guest.python("'\\ud800'").value == "'\\ud800'"
    answer = guest.python("class S:\n    def __repr__(self): return '\\ud800'\nS()")
    assert (answer.exit_code, answer.restarted) == (0, False)
    assert guest.python("x").value == "1"


def test_a_huge_value_is_cut_and_says_so(guest: GuestProcess) -> None:
    value = guest.python("'x' * 10_000_000").value
    assert value is not None
    assert len(value) < 300_000 and value.endswith("characters more)")


def test_code_that_closes_its_streams_gets_them_back(guest: GuestProcess) -> None:
    guest.python("import os\nos.close(1); os.close(2)")
    assert text(guest.python("print('back')")) == "back\n"


def test_unflushed_output_belongs_to_the_command_that_wrote_it(guest: GuestProcess) -> None:
    assert text(guest.python("import sys\nsys.stdout.write('no newline')")) == "no newline"
    assert text(guest.python("pass")) == ""


def test_two_names_are_two_interpreters_beside_the_shells_of_the_same_name(guest: GuestProcess) -> None:
    guest.python("x = 1", shell="one")
    assert guest.python("'x' in globals()", shell="two").value == "False"
    assert text(guest.run("echo bash", shell="one")) == "bash\n"


def test_python_without_a_name_keeps_nothing(guest: GuestProcess) -> None:
    assert guest.python("x = 1\nx", shell=None).value == "1"
    answer = guest.python("x", shell=None)
    assert answer.error is not None and answer.error["name"] == "NameError"


def test_threads_and_large_output_do_not_lock_the_interpreter(guest: GuestProcess) -> None:
    answer = guest.python(
        "import threading\nt = threading.Thread(target=print, args=('y' * 5_000_000,))\nt.start(); t.join()"
    )
    assert answer.stdout.total == 5_000_001


def test_a_fork_that_runs_on_does_not_answer_for_its_parent(guest: GuestProcess) -> None:
    guest.python("import os; who = 'parent'\nif os.fork() == 0: who = 'child'")
    assert {guest.python("who").value for _ in range(10)} == {"'parent'"}
