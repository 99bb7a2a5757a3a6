"""From a recipe to the servers that it runs: their command lines, environments and ports. Pure.

The command is the image's own command, never its entry point: NVIDIA's entry point is what makes a newer CUDA work on
an older driver, so it has to stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from packaging.version import Version

from spark_images.compat.release import ranges
from spark_images.errors import UsageError
from spark_images.recipes.read import MACHINE_GIB, Lane, ModelRecipe, Note, Recipe, Setting, releases_of
from spark_images.vllm.check import Checker
from spark_images.vllm.fields import Takes

PORT = 8000  # within a container
START_S = (
    3600  # a first start downloads the model, compiles kernels and tunes; 18 minutes were seen with the model there
)
STOP_S = 60
SHM_GIB = 2  # of vLLM's Kubernetes example; shared memory carries messages, on one GPU no tensors
# Ends well when the server answers, which it does when it has loaded and compiled, not before.
HEALTHY = (
    "python3",
    "-c",
    "import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=5)",
    f"http://127.0.0.1:{PORT}/health",
)

# Folders of a container that outlive it, and the variables that put things there. FlashInfer's own cache is not among
# them: kernels that an image brings along lie where its variable points.
MODELS, CACHE = "/models", "/cache"
_KEPT = (
    ("HF_HOME", MODELS),
    ("CUDA_CACHE_PATH", f"{CACHE}/cuda"),  # the driver's own compiler: minutes at the first start
    ("TRITON_CACHE_DIR", f"{CACHE}/triton"),
    ("VLLM_CACHE_ROOT", f"{CACHE}/vllm"),  # torch.compile
)


@dataclass(frozen=True, kw_only=True)
class Server:
    """One `vllm serve`. after: the server that has to be up before it starts; "" for the first."""

    name: str  # also of its container, service and unit
    model: str
    release: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    published: int  # the port on the host
    memory_gib: float
    after: str = ""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A recipe for one release."""

    recipe: str
    release: str
    servers: tuple[Server, ...]  # in the order in which they start
    notes: tuple[Note, ...]
    unverified: tuple[str, ...]  # models of which nobody says that they ran so on a GB10

    @property
    def restart(self) -> str:
        """The restart policy of a container: an engine that comes up would start several servers at once."""
        return "unless-stopped" if len(self.servers) == 1 else "on-failure"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where servers run. image: by digest. models: a volume, or a folder of the host, that holds the models."""

    image: str
    engine: str = "docker"  # or "podman"
    listen: str = "127.0.0.1"  # vLLM asks nobody for a password
    models: str = "huggingface"


def plan_servers(recipe: Recipe, release: str, checker: Checker) -> Serving:
    """What to run of a recipe with a release of vLLM; UsageError where the recipe does not hold for it."""
    version = checker.knowledge.version(release)
    holds = releases_of(recipe, checker.knowledge.releases)
    if version not in holds:
        raise UsageError(
            f"recipe `{recipe.name}` does not hold for vllm {release}",
            why=[f"it holds for {ranges(holds, checker.knowledge.releases)}"],
            hint="take another recipe, or the image of another release with `--release`",
        )
    lanes = _lanes(recipe, version)
    servers: list[Server] = []
    for lane, setting in lanes:
        servers.append(
            Server(
                name=lane.name,
                model=lane.recipe.model,
                release=release,
                command=tuple(_command(recipe.name, lane, setting, release, checker)),
                env=(*_KEPT, *setting.env),
                published=PORT + len(servers),
                memory_gib=lane.memory_share * MACHINE_GIB,
                after=servers[-1].name if servers else "",
            )
        )
    return Serving(
        recipe=recipe.name,
        release=release,
        servers=tuple(servers),
        notes=(
            *(() if isinstance(recipe, ModelRecipe) else recipe.notes),
            *(note for _, setting in lanes for note in setting.notes),
        ),
        unverified=tuple(lane.recipe.model for lane, setting in lanes if not setting.seen_on_gb10),
    )


def _lanes(recipe: Recipe, release: Version) -> list[tuple[Lane, Setting]]:
    if isinstance(recipe, ModelRecipe):
        setting = recipe.setting(release)
        assert setting is not None  # the caller has looked
        share, length = setting.memory_share, setting.max_model_len
        return [(Lane(name=recipe.name, recipe=recipe, memory_share=share, max_model_len=length), setting)]
    found = [(lane, lane.recipe.setting(release)) for lane in recipe.lanes]
    return [
        (replace(lane, name=f"{recipe.name}-{lane.name}"), setting) for lane, setting in found if setting is not None
    ]


def _command(recipe: str, lane: Lane, setting: Setting, release: str, checker: Checker) -> Iterator[str]:
    yield from ("vllm", "serve", lane.recipe.model)
    # The lane's own name, and one for whatever lane answers: clients that ask for the recipe need not know the lanes.
    yield from ("--served-model-name", *dict.fromkeys((lane.name, recipe)))
    yield from ("--host", "0.0.0.0", "--port", str(PORT))
    yield from ("--gpu-memory-utilization", f"{lane.memory_share:g}")
    yield from ("--max-model-len", str(lane.max_model_len))
    if setting.reasoning_parser:
        yield from ("--reasoning-parser", setting.reasoning_parser)
    if setting.tool_call_parser:
        yield from ("--enable-auto-tool-choice", "--tool-call-parser", setting.tool_call_parser)
    names = checker.names(release)
    for name, value in setting.flags:
        takes = names.flags[name].takes
        if takes in (Takes.TOGGLE, Takes.NOTHING):
            yield name if value == "true" else f"--no-{name.removeprefix('--')}"
        elif value.startswith("-"):
            yield f"{name}={value}"
        else:
            yield from (name, value)
    if "--fail-on-environ-validation" in names.flags:
        yield "--fail-on-environ-validation"  # else vLLM only warns of a variable that it does not know
