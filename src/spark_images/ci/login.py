"""The registry login of a job: from the forge's variables to what every registry client here reads. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from spark_images.errors import RegistryError

REGISTRY, USER, PASSWORD = "SPARK_IMAGES_REGISTRY", "SPARK_IMAGES_REGISTRY_USER", "SPARK_IMAGES_REGISTRY_PASSWORD"
TOKEN = "SPARK_IMAGES_FORGE_TOKEN"  # the job's own token; it goes to the forge and its registry, to nobody else
CONFIG = "DOCKER_AUTH_CONFIG"


def with_login(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with $DOCKER_AUTH_CONFIG for $SPARK_IMAGES_REGISTRY, and without user, password and token.

    The token logs in where no user and password are set and the registry is the forge's own, but for Gitea's, which
    lets no job's token push. RegistryError for half of a login.
    """
    left = {name: value for name, value in env.items() if name not in (USER, PASSWORD, TOKEN)}
    host = env.get(REGISTRY, "").partition("/")[0]
    user, password = env.get(USER, ""), env.get(PASSWORD, "")
    if bool(user) != bool(password):
        there, lacking = (USER, PASSWORD) if user else (PASSWORD, USER)
        raise RegistryError(
            f"half of a login for `{host}`: ${there} is set, ${lacking} is not",
            hint="set the password as a secret of the repository or the organisation, the user as a variable",
        )
    own = _of_forge(host, env.get("GITHUB_SERVER_URL", "")) and not env.get("GITEA_ACTIONS")
    if host and not user and env.get(TOKEN) and own:
        user, password = env.get("GITHUB_ACTOR") or "x-access-token", env[TOKEN]
    if host and user:
        auth = base64.b64encode(f"{user}:{password}".encode()).decode()
        left[CONFIG] = json.dumps(_merged(env.get(CONFIG, ""), host, auth))
    return left


def _of_forge(host: str, server: str) -> bool:
    of_forge = server.partition("://")[2].partition("/")[0]
    return host == of_forge or (host, of_forge) == ("ghcr.io", "github.com")


def _merged(text: str, host: str, auth: str) -> dict[str, object]:
    try:
        there = json.loads(text or "{}")
        auths = {**there.get("auths", {}), host: {"auth": auth}}
    except (ValueError, AttributeError, TypeError):
        raise RegistryError(f"${CONFIG} holds no JSON object") from None
    return {**there, "auths": auths}
