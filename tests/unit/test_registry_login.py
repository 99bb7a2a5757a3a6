"""Where logins come from, what challenges mean, and that no secret gets anywhere but where it belongs."""

from __future__ import annotations

import base64
import json
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spark_images.errors import RegistryError, UsageError
from spark_images.registry.answers import retry_after_s
from spark_images.registry.client import Client
from spark_images.registry.credentials import Credentials, find_credentials
from spark_images.registry.login import read_challenge
from spark_images.registry.reference import Repository, parse_reference, tag_of

PLANTED = "pl4nted-s3cret"


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def helper(folder: Path, name: str, script: str) -> str:
    """A credential helper; the PATH that finds it."""
    program = folder / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def write(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def test_the_places_are_asked_in_order(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    write(tmp_path / ".docker/config.json", {"auths": {"r.io": auth("docker", "1")}})
    assert find_credentials("r.io", "you/x", env).user == "docker"
    env["XDG_RUNTIME_DIR"] = str(tmp_path / "run")
    write(tmp_path / "run/containers/auth.json", {"auths": {"r.io": auth("podman", "2")}})
    assert find_credentials("r.io", "you/x", env).user == "podman"
    env["REGISTRY_AUTH_FILE"] = str(write(tmp_path / "auth", {"auths": {"r.io": auth("file", "3")}}))
    assert find_credentials("r.io", "you/x", env).user == "file"
    env["DOCKER_AUTH_CONFIG"] = json.dumps({"auths": {"r.io": auth("variable", "4")}})
    assert find_credentials("r.io", "you/x", env).user == "variable"
    assert not find_credentials("other.io", "you/x", env)


@pytest.mark.parametrize("key", ["r.io", "https://r.io", "https://r.io/v1/", "r.io/you", "r.io/you/x"])
def test_hosts_are_known_by_each_way_of_writing_them(tmp_path: Path, key: str) -> None:
    env = {"DOCKER_AUTH_CONFIG": json.dumps({"auths": {key: auth("me", PLANTED)}})}
    assert find_credentials("r.io", "you/x", env) == Credentials(user="me", password=PLANTED)


def test_the_most_exact_login_counts() -> None:
    env = {"DOCKER_AUTH_CONFIG": json.dumps({"auths": {"r.io": auth("all", "1"), "r.io/you": auth("yours", "2")}})}
    assert find_credentials("r.io", "you/x", env).user == "yours"
    assert find_credentials("r.io", "them/x", env).user == "all"


def test_a_helper_of_the_host_is_asked_on_its_standard_input(tmp_path: Path) -> None:
    answer = json.dumps({"Username": "me", "Secret": PLANTED})
    path = helper(tmp_path, "vault", f"[ $1 = get ] && [ $(cat) = r.io ] && echo '{answer}'")
    env = {"PATH": path, "DOCKER_AUTH_CONFIG": json.dumps({"credHelpers": {"r.io": "vault"}})}
    assert find_credentials("r.io", "you/x", env) == Credentials(user="me", password=PLANTED)


def test_the_store_of_all_hosts_may_hold_an_identity_token(tmp_path: Path) -> None:
    answer = json.dumps({"Username": "<token>", "Secret": PLANTED})
    env = {"PATH": helper(tmp_path, "store", f"echo '{answer}'"), "DOCKER_AUTH_CONFIG": '{"credsStore": "store"}'}
    assert find_credentials("r.io", "you/x", env) == Credentials(identity_token=PLANTED)


def test_a_store_without_the_host_is_no_error(tmp_path: Path) -> None:
    path = helper(tmp_path, "store", "echo 'credentials not found in native keychain'; exit 1")
    assert not find_credentials("r.io", "x", {"PATH": path, "DOCKER_AUTH_CONFIG": '{"credsStore": "store"}'})


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo pl4nted-s3cret >&2; exit 3", "failed with status 3"),
        ("echo pl4nted-s3cret", "something else than a login"),
    ],
)
def test_a_helper_that_fails_is_named_and_what_it_said_is_not_shown(tmp_path: Path, script: str, said: str) -> None:
    env = {"PATH": helper(tmp_path, "bad", script), "DOCKER_AUTH_CONFIG": '{"credsStore": "bad"}'}
    with pytest.raises(RegistryError, match=said) as caught:
        find_credentials("r.io", "x", env)
    assert PLANTED not in "".join(traceback.format_exception(caught.value)) + caught.value.render()


def test_a_helper_that_is_missing_is_named() -> None:
    env = {"PATH": "/nowhere", "DOCKER_AUTH_CONFIG": '{"credsStore": "gone"}'}
    with pytest.raises(RegistryError, match="`docker-credential-gone`, which is not on PATH"):
        find_credentials("r.io", "x", env)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"auths": {{"r.io": {{"auth": "{PLANTED}"}}}}}}',
        f'{{"auths": "{PLANTED}"}}',
        f'{{"{PLANTED}',
        f'["{PLANTED}"]',
    ],
)
def test_a_broken_file_is_named_and_nothing_of_it_is_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "auth").write_text(text)
    with pytest.raises(RegistryError, match="cannot be read") as caught:
        find_credentials("r.io", "x", {"REGISTRY_AUTH_FILE": str(tmp_path / "auth")})
    assert str(tmp_path / "auth") in caught.value.what
    assert PLANTED not in "".join(traceback.format_exception(caught.value)) + caught.value.render()


def test_credentials_do_not_print_themselves() -> None:
    assert PLANTED not in repr(Credentials(user="me", password=PLANTED, identity_token=PLANTED))


@pytest.mark.parametrize(
    ("header", "scheme", "realm"),
    [
        ('Bearer realm="https://a/t",service="s",scope="repository:x:pull,push"', "bearer", "https://a/t"),
        ('Basic realm="Registry"', "basic", "Registry"),
        ('Bearer realm="https://g/v2/token",service="c",scope="*", Basic realm="Gitea Container Registry"', "bearer", "https://g/v2/token"),
        ('Basic realm="G", Bearer realm="https://g/t"', "bearer", "https://g/t"),
        ("", "", None),
        ("Negotiate", "", None),
    ],
)  # fmt: skip
def test_challenges_are_read(header: str, scheme: str, realm: str | None) -> None:
    found = read_challenge(header)
    assert (found[0], found[1].get("realm")) == (scheme, realm)


@dataclass
class Seen:
    """A registry and, on another port, whom it redirects or sends to."""

    host: str = ""
    other: str = ""
    realm: str = ""
    redirect: str = ""
    headers: list[tuple[str, str, str]] = field(default_factory=list)  # (port's role, path, Authorization)


@pytest.fixture
def seen() -> Iterator[Seen]:
    state = Seen()

    def handler(role: str) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                given = self.headers.get("Authorization", "")
                state.headers.append((role, self.path, given))
                if "/token" in self.path:
                    self.answer(200, body=json.dumps({"token": "t0ken"}).encode())
                elif role == "other":
                    self.answer(401, {"WWW-Authenticate": f'Bearer realm="http://{state.other}/token"'})
                elif given != "Bearer t0ken":
                    self.answer(401, {"WWW-Authenticate": f'Bearer realm="{state.realm}",scope="s"'})
                elif state.redirect:
                    self.answer(307, {"Location": state.redirect})
                else:
                    self.answer(200, body=b"{}")

            def answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
                self.send_response(status)
                for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                """Nothing on the test's terminal."""

        return Handler

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler(role)) for role in ("registry", "other")]
    state.host, state.other = (f"127.0.0.1:{server.server_port}" for server in servers)
    state.realm = f"http://{state.host}/token"
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    for thread in threads:
        thread.start()
    yield state
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


def client_of(seen: Seen) -> Client:
    logins = {"DOCKER_AUTH_CONFIG": json.dumps({"auths": {seen.host: auth("me", PLANTED)}})}
    return Client(Repository(host=seen.host, name="you/x"), env=logins)


def test_a_password_goes_to_the_token_service_and_the_token_to_the_registry(seen: Seen) -> None:
    client_of(seen).ask("GET", "tags/list")
    assert [(path.partition("?")[0], given.partition(" ")[0]) for _, path, given in seen.headers] == [
        ("/v2/you/x/tags/list", ""),
        ("/token", "Basic"),
        ("/v2/you/x/tags/list", "Bearer"),
    ]


def test_whom_the_registry_redirects_to_gets_neither_token_nor_password(seen: Seen) -> None:
    seen.redirect = f"http://{seen.other}/blob"
    with pytest.raises(RegistryError, match="refuses access"):
        client_of(seen).ask("GET", "blobs/y")
    assert [(path, given) for role, path, given in seen.headers if role == "other"] == [("/blob", "")]


def test_whom_the_registry_sends_uploads_to_gets_no_token(seen: Seen) -> None:
    client = client_of(seen)
    client.ask("GET", "tags/list")
    client.once("GET", f"http://{seen.other}/upload")
    assert [(path, given) for role, path, given in seen.headers if role == "other"] == [("/upload", "")]


def test_a_token_service_without_tls_gets_no_password(seen: Seen) -> None:
    seen.realm = "http://tokens.example/get"
    with pytest.raises(RegistryError, match=r"sends logins to `http://tokens.example/get`, which has no TLS"):
        client_of(seen).ask("GET", "tags/list")


def test_an_upload_address_without_tls_is_not_followed(seen: Seen) -> None:
    with pytest.raises(RegistryError, match="which has no TLS"):
        client_of(seen).once("PATCH", "http://uploads.example/1", data=b"data")


def test_netrc_is_not_asked(seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login x password {PLANTED}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    Client(Repository(host=seen.host, name="you/x"), env={}).ask("GET", "tags/list")
    assert all(given in ("", "Bearer t0ken") for _, _, given in seen.headers)


@pytest.mark.parametrize(
    ("text", "tag", "digest"),
    [
        ("ghcr.io/you/x:1.0", "1.0", ""),
        (f"127.0.0.1:5000/x@sha256:{'0' * 64}", "", f"sha256:{'0' * 64}"),
        (f"ghcr.io/a/b/x:1@sha256:{'0' * 64}", "1", f"sha256:{'0' * 64}"),
    ],
)
def test_references_are_read(text: str, tag: str, digest: str) -> None:
    reference = parse_reference(text)
    assert (reference.tag, reference.digest) == (tag, digest)
    assert str(reference.repository) == text.partition("@")[0].removesuffix(f":{tag}")


@pytest.mark.parametrize("text", ["ghcr.io/you/x", "x:1", "https://ghcr.io/x:1", "ghcr.io/X:1", "ghcr.io/x:1@sha256:0"])
def test_what_is_no_reference_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_reference(text)


def test_a_tag_holds_what_tags_can() -> None:
    assert tag_of("0.19.1+cu130", "gb10") == "0.19.1_cu130-gb10"
    assert Repository(host="h", name="n").at("t") == "h/n:t"


def test_retry_after_that_is_neither_number_nor_date_is_nothing() -> None:
    import requests

    response = requests.Response()
    response.headers["Retry-After"] = "soon"
    assert retry_after_s(response) is None
