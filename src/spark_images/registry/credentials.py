"""Logins for registries, from where `docker login`, `podman login` and `skopeo login` leave them.

Asked in this order, the first that knows the host counts: $DOCKER_AUTH_CONFIG (the text of a config.json, as CI systems
hand it over), $REGISTRY_AUTH_FILE, $XDG_RUNTIME_DIR/containers/auth.json, $DOCKER_CONFIG/config.json or
~/.docker/config.json. A `credHelpers` or `credsStore` entry there is asked for what the file does not hold itself.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_images.errors import HostProgramError, RegistryError
from spark_images.process import hand

_DOCKER_HUB = "https://index.docker.io/v1/"  # the key under which Docker keeps the login of docker.io
HELPER_S = 60  # a helper may ask a cloud for a token; longer, and it waits for somebody at a keyboard


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """A user's login at one host; never printed, also not as part of something else."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)  # to be exchanged for access tokens (OAuth 2)

    def __bool__(self) -> bool:
        return bool(self.user or self.identity_token)


def find_credentials(host: str, name: str, env: Mapping[str, str]) -> Credentials:
    """The login for a repository's name at a host; empty where there is none. Raises RegistryError for broken files."""
    for source, config in _configs(env):
        try:
            if found := _in_config(config, host, name, env):
                return found
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise _unreadable(source) from err  # which holds no word of the file
    return Credentials()


def _configs(env: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    if text := env.get("DOCKER_AUTH_CONFIG"):
        yield "$DOCKER_AUTH_CONFIG", _parse(text, "$DOCKER_AUTH_CONFIG")
    home = env.get("HOME", "")
    places = [
        env.get("REGISTRY_AUTH_FILE", ""),
        env["XDG_RUNTIME_DIR"] + "/containers/auth.json" if env.get("XDG_RUNTIME_DIR") else "",
        env["DOCKER_CONFIG"] + "/config.json" if env.get("DOCKER_CONFIG") else f"{home}/.docker/config.json",
    ]
    for place in filter(None, places):
        try:
            text = Path(place).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as err:
            raise _unreadable(place) from err
        yield place, _parse(text, place)


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        config = json.loads(text or "{}")
    except ValueError:
        raise _unreadable(source) from None  # json's message quotes nothing, but its exception carries the text
    if not isinstance(config, dict):
        raise _unreadable(source)
    return config


def _unreadable(source: str) -> RegistryError:
    return RegistryError(
        f"the logins in `{source}` cannot be read",
        hint="log in again with `docker login` or `podman login`, or remove the file",
    )


def _in_config(config: Mapping[str, Any], host: str, name: str, env: Mapping[str, str]) -> Credentials:
    keys = _keys(host, name)
    helpers = config.get("credHelpers") or {}
    for key in keys:
        if helper := helpers.get(key):
            return _ask(str(helper), key, env)
    auths = {_host_key(key): value for key, value in (config.get("auths") or {}).items()}
    for key in keys:
        entry = auths.get(_host_key(key))
        if entry is None:
            continue
        if entry.get("identitytoken"):
            return Credentials(identity_token=str(entry["identitytoken"]))
        if entry.get("auth"):
            try:
                user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                raise ValueError from None
            return Credentials(user=user, password=password.rstrip("\0"))
        if entry.get("username"):
            return Credentials(user=str(entry["username"]), password=str(entry["password"]))
    if store := config.get("credsStore"):
        return _ask(str(store), _DOCKER_HUB if host in ("docker.io", "registry-1.docker.io") else host, env)
    return Credentials()


def _keys(host: str, name: str) -> list[str]:
    """Most exact first: podman keeps logins for parts of a registry, `host/you`, as well."""
    parts = name.split("/")
    exact = [f"{host}/{'/'.join(parts[:count])}" for count in range(len(parts), 0, -1)]
    return [*exact, host, *([_DOCKER_HUB] if host in ("docker.io", "registry-1.docker.io") else [])]


def _host_key(key: str) -> str:
    """Old files have `https://host/v1/` for a host."""
    bare = key.removeprefix("https://").removeprefix("http://")
    return bare.removesuffix("/v1/").removesuffix("/v2/").rstrip("/")


def _ask(helper: str, host: str, env: Mapping[str, str]) -> Credentials:
    """What docker-credential-<helper> knows. Its output never leaves this function but as Credentials."""
    program = f"docker-credential-{helper}"
    try:
        ended = hand([program, "get"], host.encode(), env=env, timeout_s=HELPER_S)
    except HostProgramError as err:
        if err.timed_out:
            raise RegistryError(err.what, hint="is its keyring locked?") from None
        raise RegistryError(
            f"the login for {host} is kept by `{program}`, which is not on PATH",
            hint=f"install it, or log in without it: `podman login {host}`",
        ) from None
    if ended.status != 0:
        if (
            "not found" in ended.stdout.decode(errors="replace") + ended.stderr
        ):  # "credentials not found in native keychain"
            return Credentials()
        raise RegistryError(f"`{program}` failed with status {ended.status}", hint=f"run `docker login {host}` anew")
    try:
        said = json.loads(ended.stdout)
        user, secret = str(said["Username"]), str(said["Secret"])
    except (KeyError, TypeError, ValueError):
        raise RegistryError(f"`{program}` answered with something else than a login") from None
    if user == "<token>":  # Docker's word for an identity token
        return Credentials(identity_token=secret)
    return Credentials(user=user, password=secret)
