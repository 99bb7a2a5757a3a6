"""What an image is made of, how it is compiled and how it starts, as images/<name>/image.yaml says it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_images.compat.command import Kernels


@dataclass(frozen=True, kw_only=True)
class WheelUse:
    """Which wheels of a WheelsPin go where: programs for the builder's platform, libraries for the target's."""

    pin: str
    builder: tuple[str, ...] = ()  # project names; the wheels of the builder's platform
    target: tuple[str, ...] = ()  # project names; the wheels of the target's platform


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """Another CUDA for one target: all of an image, mounted beside the inputs, in place of a pin's wheels."""

    target: str
    image: str  # an image pin
    instead_of: str  # a wheels pin


@dataclass(frozen=True, kw_only=True)
class CompileSpec:
    """What the build stages stand on and how much one compile job needs."""

    pin: str  # a git, sdist or requirements pin; its version and time are the image's
    debs: tuple[str, ...]  # sets of the debs pin for the builder's architecture
    image: str  # in place of these the image pin that compiling is done in; "" where it is debs
    cross_debs: tuple[tuple[str, tuple[str, ...]], ...]  # target arch -> further sets where the builder differs from it
    wheels: tuple[WheelUse, ...]
    gib_per_job: float  # largest peak of one compiler process, GiB
    toolkits: tuple[Toolkit, ...] = ()
    sources: tuple[str, ...] = ()  # further source pins, mounted as they are
    installs: str = ""  # the requirements pin whose wheels are installed as well; "" for none
    compiled: tuple[
        str, ...
    ] = ()  # projects that are not installed from its wheels, but compiled here or in a component
    components: tuple[str, ...] = ()  # images whose files become part of this one; they are built before it
    kernels: Kernels = Kernels.SERVING  # which of them are compiled ahead, where the source is a project WITH_RULES

    def toolkit(self, target: str) -> Toolkit | None:
        """The target's own CUDA, where it has one."""
        return next((toolkit for toolkit in self.toolkits if toolkit.target == target), None)

    def wheels_for(self, target: str) -> tuple[WheelUse, ...]:
        """The wheels that take part in a compile for the target."""
        toolkit = self.toolkit(target)
        return tuple(use for use in self.wheels if toolkit is None or use.pin != toolkit.instead_of)


@dataclass(frozen=True, kw_only=True)
class RuntimeSpec:
    """The image's configuration (the OCI image config is written from this) and what it stands on."""

    debs: tuple[str, ...]  # sets of the debs pin for the target's architecture
    image: str  # in place of these the image pin that the image stands on; "" where it is debs
    user: str  # "10001:10001"
    folders: tuple[str, ...]  # absolute paths; the user's own
    env: tuple[tuple[str, str], ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    ports: tuple[str, ...]  # "8080/tcp"
    workdir: str
    stop_signal: str


@dataclass(frozen=True, kw_only=True)
class Way:
    """How an image is made on one base."""

    template: str  # file in templates/
    scripts: tuple[str, ...]  # files of scripts/ that the build steps run; they are part of the plan
    compile: CompileSpec
    runtime: RuntimeSpec


@dataclass(frozen=True, kw_only=True)
class Excuse:
    """What the audit lets pass in an image, or what it does not let into it, and why."""

    pattern: str  # of paths, where `*` stands for anything; a project's or library's name
    because: str


@dataclass(frozen=True, kw_only=True)
class AuditSpec:
    """What the audit has to know of an image."""

    never_called: tuple[Excuse, ...] = ()  # libraries whose GPU code no target of the image ever calls
    absent: tuple[Excuse, ...] = ()  # Python distributions that must not be there
    brought: tuple[Excuse, ...] = ()  # libraries that the images bring of which it is a component: "libcudart.so.13"


@dataclass(frozen=True, kw_only=True)
class Image:
    """One folder below images/."""

    name: str
    path: str  # of image.yaml, for messages
    description: str
    licenses: str  # SPDX expression
    source_url: str
    template: str  # file in templates/
    scripts: tuple[str, ...]  # files of scripts/ that the build steps run; they are part of the plan
    supports: tuple[tuple[str, tuple[str, ...]], ...]  # target -> bases, in order of preference
    compile: CompileSpec
    runtime: RuntimeSpec
    arguments: tuple[tuple[str, str], ...] = ()  # name -> value, for the template
    others: tuple[tuple[str, Way], ...] = ()  # base -> how it is made there, where not as above
    audit: AuditSpec = AuditSpec()
    smoke: tuple[str, ...] = ()  # checks of scripts/smoke that have to pass on the target's GPU

    def on(self, base: str) -> Image:
        """The image as it is made on that base."""
        way = dict(self.others).get(base)
        if way is None:
            return self
        return replace(self, template=way.template, scripts=way.scripts, compile=way.compile, runtime=way.runtime)
