"""Where the address and the key come from."""

import json
from pathlib import Path

import pytest
from sandbox_client import ConfigurationError, SandboxClient
from sandbox_client.credentials import Credentials, credentials_path, find, is_loopback
from sdk_wire import KEY

HERE = "http://127.0.0.1:5000"


@pytest.fixture
def written(tmp_path):
    """An environment in which quickstart has run."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    path = credentials_path(environ)
    path.parent.mkdir()
    path.write_text(json.dumps({"url": HERE, "api_key": "from-file", "more": 1}))
    return environ


def test_arguments_win_over_the_environment_and_the_file(written):
    environ = {**written, "SANDBOX_URL": "http://env", "SANDBOX_API_KEY": "from-env"}
    assert find("http://arg/", "from-arg", environ) == Credentials("http://arg", "from-arg")


def test_the_environment_wins_over_the_file(written):
    environ = {**written, "SANDBOX_URL": "http://env", "SANDBOX_API_KEY": "from-env"}
    assert find(None, None, environ) == Credentials("http://env", "from-env")


def test_what_quickstart_wrote_is_found(written):
    assert find(None, None, written) == Credentials(HERE, "from-file")


def test_the_file_is_looked_for_in_the_home_directory(tmp_path):
    expected = Path(tmp_path, ".config", "sandbox", "credentials.json")
    assert credentials_path({"HOME": str(tmp_path)}) == expected


def test_the_files_key_serves_another_name_of_the_same_machine(written):
    assert find("http://localhost:5000", None, written).api_key == "from-file"


@pytest.mark.parametrize("url", ["http://elsewhere:5000", "http://127.0.0.1:5001", "https://127.0.0.1:5000"])
def test_the_files_key_is_not_sent_to_another_server(written, url):
    with pytest.raises(ConfigurationError, match=f"has a key, but for {HERE}"):
        find(url, None, written)


def test_a_key_alone_goes_to_the_server_on_this_machine(tmp_path):
    assert find(None, KEY, {"HOME": str(tmp_path)}) == Credentials(HERE, KEY)


def test_without_a_key_the_error_says_what_to_do():
    with pytest.raises(ConfigurationError, match=r"SANDBOX_API_KEY.*quickstart\.sh"):
        SandboxClient()


@pytest.mark.parametrize("content", ["{", "[]", '{"url": 1}', '{"url": "http://a"}'])
def test_a_broken_file_is_named(written, content):
    path = credentials_path(written)
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=str(path)):
        find(None, None, written)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:5000",
        "ftp://a",
        "http://",
        "http://u:secret@a",
        "http://a?b",
        "http://a:99999",
        "http://[a",
    ],
)
def test_an_address_that_makes_no_sense_is_refused_without_showing_it(url):
    with pytest.raises(ConfigurationError, match="must look like") as caught:
        find(url, KEY, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["a b", "a\nb", "clé"])
def test_a_key_that_cannot_be_a_header_is_refused_without_showing_it(key):
    with pytest.raises(ConfigurationError) as caught:
        find(HERE, key, {})
    assert key not in str(caught.value)


def test_a_line_end_after_the_key_does_no_harm():
    assert find(HERE, KEY + "\n", {}).api_key == KEY


def test_credentials_do_not_show_the_key():
    assert KEY not in repr(Credentials(HERE, KEY))


@pytest.mark.parametrize("url", [HERE, "http://localhost", "http://[::1]:5000", "http://sandbox.localhost"])
def test_loopback_is_known(url):
    assert is_loopback(url)


def test_other_hosts_are_not_loopback():
    assert not is_loopback("https://localhost.example.com")
