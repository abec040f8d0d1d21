"""A shell of the guest keeps its state, as a person at a terminal expects, and tells how a command ended."""

from __future__ import annotations

import os

import pytest
from guest_process import UID, GuestProcess, errors_of, text

from server.errors import NoSuchDirectory


def test_directory_variables_and_functions_stay(guest: GuestProcess) -> None:
    guest.run("mkdir d; cd d; a=1; export B=2; f() { echo f$1; }; alias g='echo aliased'")
    assert text(guest.run("pwd; echo $a $B; f 3")) == f"{guest.home}/d\n1 2\nf3\n"


def test_an_activated_environment_stays(guest: GuestProcess) -> None:
    guest.run(
        "echo 'deactivate() { :; }; export VIRTUAL_ENV=/v; PATH=/v/bin:$PATH' > activate; source activate"
    )
    assert text(guest.run("echo $VIRTUAL_ENV ${PATH%%:*}; type -t deactivate")) == "/v /v/bin\nfunction\n"


def test_shell_options_stay(guest: GuestProcess) -> None:
    guest.run("set -o pipefail; shopt -s nullglob")
    answer = guest.run("echo *.none; false | true")
    assert (text(answer), answer.exit_code) == ("\n", 1)


def test_the_last_status_is_kept_for_the_next_command(guest: GuestProcess) -> None:
    guest.run("(exit 7)")
    assert text(guest.run("echo $?")) == "7\n"
    assert text(guest.run("echo $?")) == "0\n"


def test_the_directory_after_the_command_is_told(guest: GuestProcess) -> None:
    assert guest.run("cd /usr").cwd == "/usr"
    assert guest.run("true").cwd == "/usr"


def test_two_names_are_two_shells(guest: GuestProcess) -> None:
    guest.run("a=1; cd /", shell="one")
    assert text(guest.run("echo ${a-unset}; pwd", shell="two")) == f"unset\n{guest.home}\n"


def test_a_process_of_its_own_keeps_no_state(guest: GuestProcess) -> None:
    guest.run("cd /; export A=1", shell=None)
    assert text(guest.run("pwd; echo ${A-unset}", shell=None)) == f"{guest.home}\nunset\n"


def test_an_exit_code_is_told_as_it_is(guest: GuestProcess) -> None:
    for code in (0, 1, 2, 124, 125, 126, 127, 128, 129, 137, 143, 255):
        answer = guest.run(["bash", "-c", f"exit {code}"])
        assert (answer.exit_code, answer.signal, answer.timed_out) == (code, None, False)


def test_exit_gives_its_code_and_a_fresh_shell(guest: GuestProcess) -> None:
    guest.run("a=1")
    answer = guest.run("echo bye; exit 3")
    assert (answer.exit_code, answer.restarted, text(answer)) == (3, True, "bye\n")
    assert text(guest.run("echo ${a-unset}")) == "unset\n"


def test_exec_replaces_the_shell_and_gives_that_programs_output(guest: GuestProcess) -> None:
    answer = guest.run("exec bash -c 'echo replaced; exit 4'")
    assert (text(answer), answer.exit_code, answer.restarted) == ("replaced\n", 4, True)
    assert text(guest.run("echo fresh")) == "fresh\n"


def test_a_shell_that_kills_itself_is_told_and_replaced(guest: GuestProcess) -> None:
    answer = guest.run("kill -9 $$")
    assert (answer.exit_code, answer.signal, answer.restarted) == (137, "SIGKILL", True)
    assert guest.run("echo fresh").exit_code == 0


def test_the_signal_that_ended_a_program_is_named(guest: GuestProcess) -> None:
    for name in ("HUP", "INT", "ABRT", "KILL", "SEGV", "PIPE", "TERM", "USR1", "XCPU", "SYS"):
        answer = guest.run(["bash", "-c", f"kill -{name} $$"])
        number = int(text(guest.run(f"kill -l {name}")))
        assert (answer.signal, answer.exit_code, answer.timed_out) == (f"SIG{name}", 128 + number, False)


def test_the_signal_that_ended_a_program_of_the_shell_is_named(guest: GuestProcess) -> None:
    answer = guest.run("bash -c 'kill -TERM $$'")
    assert (answer.signal, answer.exit_code, answer.restarted) == ("SIGTERM", 143, False)


@pytest.mark.parametrize("command", ["no-such-program", ["no-such-program"]])
def test_what_is_not_there_gives_127(guest: GuestProcess, command: str | list[str]) -> None:
    answer = guest.run(command)
    assert answer.exit_code == 127
    assert "no-such-program: command not found" in errors_of(answer)


def test_a_forbidden_directory_in_the_path_does_not_turn_127_into_126(guest: GuestProcess) -> None:
    guest.run("mkdir -m 0 forbidden")
    path = {"PATH": f"{guest.home}/forbidden:/usr/bin:/bin"}
    assert guest.run("no-such-program", env=path).exit_code == 127
    assert guest.run(["no-such-program"], env=path).exit_code == 127


def test_what_cannot_be_run_gives_126(guest: GuestProcess) -> None:
    guest.run("echo data > plain")
    assert guest.run("./plain").exit_code == 126
    assert guest.run(["./plain"], shell=None).exit_code == 126
    assert guest.run(["/tmp"], shell=None).exit_code == 126


def test_a_command_with_a_mistake_in_its_syntax_leaves_the_shell_as_it_was(guest: GuestProcess) -> None:
    guest.run("a=1")
    answer = guest.run("if then 'unclosed")
    assert answer.exit_code != 0
    assert "unexpected" in errors_of(answer)
    assert text(guest.run("echo $a")) == "1\n"


def test_a_redirection_of_the_whole_shell_ends_with_its_command(guest: GuestProcess) -> None:
    guest.run("exec > file 2>&1; echo hidden")
    assert text(guest.run("echo seen; cat file")) == "seen\nhidden\n"


def test_set_e_ends_the_shell_with_the_failing_commands_code(guest: GuestProcess) -> None:
    answer = guest.run("set -e; (exit 9); echo not reached")
    assert (answer.exit_code, text(answer)) == (9, "")
    assert text(guest.run("echo fresh")) == "fresh\n"


def test_the_shell_writes_nothing_of_its_own(guest: GuestProcess) -> None:
    """No prompt, no job notices, no echo, no trace of the orders it gets."""
    answer = guest.run("set -xv; sleep 0.01 & wait; set +xv")
    assert "printf" not in errors_of(answer)
    assert (text(answer), errors_of(guest.run("true"))) == ("", "")


def test_a_multi_line_script_with_a_here_document_runs(guest: GuestProcess) -> None:
    script = "for i in 1 2; do\n  cat <<END\nline $i\nEND\ndone\n# a comment at the end"
    assert text(guest.run(script)) == "line 1\nline 2\n"


def test_a_directory_for_one_command_is_left_again(guest: GuestProcess) -> None:
    guest.run("mkdir -- d -e")
    assert text(guest.run("pwd", cwd="/usr")) == "/usr\n"
    assert text(guest.run("pwd", cwd="d")) == f"{guest.home}/d\n"
    assert text(guest.run("pwd", cwd="-e")) == f"{guest.home}/-e\n"
    assert text(guest.run("pwd")) == f"{guest.home}\n"


def test_a_command_that_moves_on_from_its_own_directory_stays_there(guest: GuestProcess) -> None:
    assert guest.run("cd lib", cwd="/usr").cwd == "/usr/lib"
    assert text(guest.run("pwd")) == "/usr/lib\n"


@pytest.mark.parametrize(
    "options", [{}, {"shell": None}, {"language": "python"}], ids=["shell", "own", "python"]
)
def test_a_directory_that_cannot_be_entered_is_refused_and_nothing_runs(
    guest: GuestProcess, options: dict[str, str]
) -> None:
    guest.run("echo data > plain; mkdir -m 0 forbidden")
    command, harmless = ("open('ran', 'w')", "1") if options.get("language") else ("touch ~/ran", "true")
    for cwd in ("/nowhere", "plain", "forbidden", "x" * 3000, "gone/"):
        with pytest.raises(NoSuchDirectory):
            guest.run(command, cwd=cwd, **options)
    assert guest.run(harmless, **options).exit_code == 0
    assert not (guest.home / "ran").exists()


def test_variables_for_one_command_are_gone_after_it(guest: GuestProcess) -> None:
    guest.run("export KEPT=old")
    value = 'it\'s "quoted" $HOME `id` \\ \n second line'
    answer = guest.run('printf "%s|" "$NEW" "$KEPT"', env={"NEW": value, "KEPT": "x"})
    assert text(answer) == f"{value}|x|"
    assert text(guest.run("echo ${NEW-unset} $KEPT")) == "unset old\n"


def test_variables_for_one_command_reach_the_programs_that_it_starts(guest: GuestProcess) -> None:
    assert text(guest.run("printenv A; bash -c 'echo $A'", env={"A": "a b"})) == "a b\na b\n"


def test_variables_reach_a_process_of_its_own(guest: GuestProcess) -> None:
    assert text(guest.run(["printenv", "A"], env={"A": "é\n"})) == "é\n\n"


def test_commands_run_as_the_user_in_the_home_directory(guest: GuestProcess) -> None:
    answer = guest.run("id -u; id -g; id -G; echo ~; umask")
    assert text(answer) == f"{UID}\n{UID}\n{UID}\n{guest.home}\n0022\n"


def test_the_guest_gives_no_descriptor_of_its_own_to_a_command(guest: GuestProcess) -> None:
    assert text(guest.run(["ls", "/proc/self/fd"])) == "0\n1\n2\n3\n"
    opened = text(guest.run("ls -l /proc/$$/fd | grep -o '[^ ]*$'"))
    assert str(guest.dir / "run") not in opened


def test_the_guests_environment_and_secret_stay_hidden(guest: GuestProcess) -> None:
    answer = guest.run(f"cat /proc/1/environ; cat {guest.dir}/run/secret; ls {guest.dir}/shells; kill -0 1")
    assert text(answer) == ""
    assert errors_of(answer).count("ermi") == 4, errors_of(answer)


def test_an_argument_list_of_a_mebibyte_works(guest: GuestProcess) -> None:
    arguments = ["x" * 1023] * 1024
    answer = guest.run(["bash", "-c", 'echo $# $(( $(printf %s "$@" | wc -c) ))', "name", *arguments])
    assert text(answer) == f"1024 {1023 * 1024}\n"


def test_a_command_of_four_mebibytes_works(guest: GuestProcess) -> None:
    assert text(guest.run(f": '{'x' * (4 << 20)}'; echo done")) == "done\n"


def test_odd_bytes_in_arguments_arrive_unchanged(guest: GuestProcess) -> None:
    odd = "é \t\n'\"\\$(id)\x01\x7f☃"
    assert text(guest.run(["printf", "%s", odd])) == odd


def test_a_large_report_of_the_directory_is_understood(guest: GuestProcess) -> None:
    """A path of 4000 characters, with newlines and blanks in it."""
    deep = "/".join(["a b\nc" * 40] * 19)
    os.makedirs(guest.home / deep)
    answer = guest.run("pwd", cwd=deep)
    assert text(answer) == f"{guest.home}/{deep}\n"


def test_functions_with_the_names_that_we_use_do_not_swallow_commands(guest: GuestProcess) -> None:
    guest.run("function . { :; }; source() { :; }; printf() { :; }")
    assert text(guest.run("echo still here")) == "still here\n"
    assert text(guest.run("echo $A", env={"A": "here"})) == "here\n"
