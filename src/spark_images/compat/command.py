"""The command that compiles a release inside a build step: its script, arguments and environment. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from spark_images.compat.build import flashinfer_variables, local_sources, patches_for, vllm_variables
from spark_images.compat.facts import Facts, FlashinferFacts, Patch, Variable, VllmFacts
from spark_images.compat.release import FlashinferRelease, VllmRelease, flashinfer_release, vllm_release
from spark_images.cuda_arch import Capability, parse_arch
from spark_images.errors import ConfigError, UsageError
from spark_images.targets import Target

TREES = "/build/trees"  # where scripts/compile_vllm unpacks inputs/trees
PATCHES = "/spark/scripts/patches"  # where staging puts them


class Kernels(Enum):
    """Which of a project's kernels are compiled ahead."""

    SERVING = "serving"  # what serving calls on the target: FlashInfer's serving set, vLLM without its needless parts
    ALL = "all"  # whatever the project itself compiles
    NONE = "none"  # each is compiled when it is first called


# Of which projects sdist_command knows how, and what they give to choose; of others the template does.
WITH_RULES = {
    "flashinfer-python": (Kernels.SERVING, Kernels.ALL, Kernels.NONE),
    "vllm": (Kernels.SERVING, Kernels.ALL),
}


@dataclass(frozen=True, kw_only=True)
class CompileCommand:
    """What stands behind `step NAME` in a RUN instruction."""

    script: str  # in scripts/
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    patches: tuple[Patch, ...] = ()

    def with_units(self, globs: Iterable[str]) -> CompileCommand:
        """The same for the objects that one of the patterns matches, and no others."""
        return replace(self, arguments=(*self.arguments, "--units", *globs))

    def line(self) -> str:
        """As a shell reads it."""
        variables = (f"{name}={value}" for name, value in self.environment)
        return shlex.join(("env", *variables, f"/spark/scripts/{self.script}", *self.arguments))


def sdist_command(
    project: str,
    version: str,
    target: Target,
    *,
    facts: Facts,
    cuda: str,
    kernels: Kernels = Kernels.SERVING,
    lacking: Collection[str] = (),
    image_python: str = "",
) -> CompileCommand:
    """How a release is compiled from its sdist. cuda: the version of nvcc; lacking: as in vllm_command.

    image_python: "3.12" where that happens in an image that has CUDA, and torch for this Python.
    Raises UsageError for a target without a GPU and a release that is not known, ConfigError for another project.
    """
    if not target.compute_capability:
        raise UsageError(f"target `{target.name}` has no GPU, so there is nothing to compile for it")
    gpu = parse_arch(target.compute_capability).capability
    if project == "flashinfer-python":
        flashinfer = flashinfer_release(facts.flashinfer, version)
        command = flashinfer_command(facts.flashinfer, flashinfer, gpu=gpu, arch=target.arch, kernels=kernels)
        return replace(command, environment=(*_of_image(image_python), *command.environment))
    if project == "vllm":
        vllm = vllm_release(facts.vllm, version)
        command = vllm_command(
            facts.vllm, vllm, gpu=gpu, arch=target.arch, cuda=cuda, all_kernels=kernels is Kernels.ALL, lacking=lacking
        )
        existing = ("--existing-torch", vllm.use_existing_torch.value) if image_python else ()
        return replace(
            command,
            arguments=(command.arguments[0], *existing, *command.arguments[1:]),
            environment=(*_of_image(image_python), *command.environment),
        )
    raise ConfigError(
        f"nobody has written down how single objects of `{project}` are compiled",
        hint="build the whole image: its template says how",
    )


def vllm_command(
    facts: VllmFacts,
    release: VllmRelease,
    *,
    gpu: Capability,
    arch: str,
    cuda: str,
    all_kernels: bool = False,
    lacking: Collection[str] = (),
) -> CompileCommand:
    """How vLLM is compiled for a GPU. arch: "arm64". cuda: the version of nvcc.

    all_kernels: also those that are never called on it. lacking: sources that cannot be had, for with_units alone.
    Raises ConfigError for a GPU of which nothing is known, and for a source without which nothing compiles.
    """
    given = local_sources(release, {source.name: f"{TREES}/{source.name}" for source in release.sources})
    arguments = [arch]
    patches = patches_for(facts, release, gpu, all_kernels=all_kernels)
    for patch in patches:
        arguments += ["--patch", f"{PATCHES}/{patch.name}.patch"]
    for source in release.sources:
        if source.name in lacking:
            file = source.source.partition(":")[0]
            if not file.startswith("cmake/external_projects/"):
                raise ConfigError(f"nothing of vllm {release.version} compiles without `{source.name}`")
            arguments += ["--lacking", file]
    return CompileCommand(
        script="compile_vllm",
        arguments=tuple(arguments),
        environment=(
            *_pairs(vllm_variables(facts, release, gpu=gpu, cuda=cuda)),
            *_pairs(given.variables),
            ("CMAKE_ARGS", " ".join(given.cmake_args)),
        ),
        patches=patches,
    )


def flashinfer_command(
    facts: FlashinferFacts,
    release: FlashinferRelease,
    *,
    gpu: Capability,
    arch: str,
    kernels: Kernels = Kernels.SERVING,
) -> CompileCommand:
    """How FlashInfer's kernels are compiled ahead: the serving set, all that it would compile itself, or none."""
    chosen = {
        Kernels.SERVING: ("--leave", *facts.leave, "--keep", *facts.keep),
        Kernels.ALL: (),
        Kernels.NONE: ("--leave", "*"),
    }[kernels]
    return CompileCommand(
        script="compile_flashinfer",
        arguments=(arch, *chosen),
        environment=_pairs(flashinfer_variables(facts, release, gpu=gpu, at_run_time=False)),
    )


def _of_image(python: str) -> tuple[tuple[str, str], ...]:
    """Where scripts/prepare_compile finds what an image has; nothing where python is ""."""
    if not python:
        return ()
    return (("SPARK_CUDA", "/usr/local/cuda"), ("SPARK_TORCH", f"/usr/local/lib/python{python}/dist-packages/torch"))


def _pairs(variables: Iterable[Variable]) -> tuple[tuple[str, str], ...]:
    return tuple((variable.name, variable.value) for variable in variables)
