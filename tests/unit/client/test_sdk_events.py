"""Events read from bytes, cut at every place there is."""

import json

import pytest
from sandbox_client import SessionEnded, UnexpectedAnswer
from sandbox_client.events import EventReader
from sdk_story import Story

PIECES = (
    ("stdout", "grün ".encode()),
    ("stderr", b"oops\n"),
    ("stdout", b"\xe2\x82"),
    ("stdout", b"\xac!\xff"),
)


@pytest.fixture
def story():
    server = Story(*PIECES)
    yield server
    server.stop()


def read(*connections):
    """All events, over connections that each give some bytes."""
    reader = EventReader()
    events = []
    for content in connections:
        reader.connected()
        events += [event for event in reader.feed(content(reader.position)) if event is not None]
    return events


def data(events, kind=None):
    return b"".join(event.data for event in events if kind in (None, event.kind))


def test_every_cut_gives_the_same_bytes_and_the_same_text(story):
    """Wherever the first connection breaks, the second goes on there: no byte is lost, none comes twice."""
    whole = story.lines(None)
    for cut in range(len(whole)):
        events = read(lambda _, cut=cut: whole[:cut], story.lines)
        assert data(events) == story.output, cut
        assert "".join(event.text for event in events if event.kind == "stdout") == "grün €!\ufffd", cut
        assert [event.kind for event in events].count("start") == 1
        assert events[-1].result.exit_code == 3


def test_every_split_into_chunks_gives_the_same_events(story):
    whole = story.lines(None)
    once = read(lambda _: whole)
    for cut in range(len(whole)):
        reader = EventReader()
        assert [*reader.feed(whole[:cut]), *reader.feed(whole[cut:])] == once


def test_bytes_that_come_again_are_dropped():
    """A server may cut the output otherwise, and begin before the position that was asked for."""
    reader = EventReader(after=3)
    events = list(reader.feed(b'{"event": "stdout", "seq": 6, "text": "abcdef"}\n'))
    assert (events[0].data, events[0].seq) == (b"def", 6)
    assert list(reader.feed(b'{"event": "stdout", "seq": 6, "text": "abcdef"}\n')) == []


def test_bytes_that_are_missing_without_a_word_are_an_error():
    with pytest.raises(UnexpectedAnswer, match="jumped from byte 0 to 4"):
        list(EventReader().feed(b'{"event": "stdout", "seq": 6, "text": "ef"}\n'))


def test_a_gap_is_told_and_counted():
    reader = EventReader(after=2)
    lines = [{"event": "gap", "seq": 9, "from": 2, "to": 9}, {"event": "stdout", "seq": 10, "text": "x"}]
    gap, output = reader.feed("".join(json.dumps(line) + "\n" for line in lines).encode())
    assert (gap.kind, gap.missing, gap.seq) == ("gap", 7, 9)
    assert output.data == b"x"


def test_half_a_character_before_a_gap_does_not_join_what_comes_after_it():
    lines = (
        b'{"event": "stdout", "seq": 2, "text": "?", "base64": "4oI="}\n'
        b'{"event": "gap", "seq": 9, "from": 2, "to": 9}\n'
        b'{"event": "stdout", "seq": 10, "text": "x"}\n'
    )
    events = list(EventReader().feed(lines))
    assert "".join(event.text for event in events) == "\ufffdx"


def test_characters_of_two_streams_do_not_mix():
    """Half a character on each, taking turns."""
    pieces = (("stdout", b"\xe2"), ("stderr", b"\xc3"), ("stdout", b"\x82\xac"), ("stderr", b"\xbc"))
    story = Story(*pieces)
    story.stop()
    events = list(EventReader().feed(story.lines(None)))
    texts = {kind: "".join(e.text for e in events if e.kind == kind) for kind in ("stdout", "stderr")}
    assert texts == {"stdout": "€", "stderr": "ü"}


def test_a_problem_in_the_stream_is_raised():
    body = {"code": "session_ended", "status": 410, "detail": "over", "cause": "oom", "retryable": False}
    line = json.dumps({"event": "problem", "seq": 0, "problem": body}).encode() + b"\n"
    with pytest.raises(SessionEnded, match="over") as caught:
        list(EventReader().feed(line))
    assert (caught.value.cause, caught.value.status) == ("oom", 410)


def test_what_a_newer_server_may_say_is_a_sign_of_life():
    assert list(EventReader().feed(b'{"event": "weather", "seq": 0}\n\n')) == [None]


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"event": "end"}', b'{"seq": 1}', b"<html>"])
def test_what_is_no_event_is_an_error(line):
    with pytest.raises(UnexpectedAnswer):
        list(EventReader().feed(line + b"\n"))
