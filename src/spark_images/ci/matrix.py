"""What must be built, on which runner and in which order. Pure: plans and what a registry has come in as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ARM64, AMD64 = "linux/arm64", "linux/amd64"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One image x target x base, as far as CI has to know it."""

    image: str
    target: str
    base: str
    platform: str  # of the image: "linux/arm64"
    builders: tuple[str, ...]  # platforms that can compile it, the image's own first
    components: tuple[str, ...] = ()  # images, for the same target and base, that are built before it
    gpu: bool = True  # whether it has checks that want the GPU of its target

    @property
    def key(self) -> str:
        """A name for jobs and files: `llamacpp-gb10-debian`."""
        return f"{self.image}-{self.target}-{self.base}"

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.image} for {self.target} on {self.base}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A variant on its runner. builder: the platform that compiles, which is a part of the plan."""

    variant: Variant
    builder: str
    runner: str  # the label that a forge finds it by
    plan_id: str = ""
    gpu_runner: str = ""  # the label of who tries it on its GPU; "" for nobody

    def document(self) -> dict[str, str]:
        """As it stands in a forge's matrix; `plan` are the 12 digits that the registry knows."""
        return {
            "title": self.variant.title,
            "image": self.variant.image,
            "target": self.variant.target,
            "base": self.variant.base,
            "builder": self.builder,
            "runner": self.runner,
            "gpu-runner": self.gpu_runner,
            "plan": self.plan_id[:12],
        }


def chosen_builder(variant: Variant, runners: Mapping[str, str]) -> str:
    """The platform that builds the variant: its own where it has a runner, else one that cross-builds; "" if none.

    runners: platform -> label, "" or absent where there is none.
    """
    return next((builder for builder in variant.builders if runners.get(builder)), "")


def in_waves(variants: Sequence[Variant]) -> tuple[tuple[Variant, ...], ...]:
    """The variants so that each stands in a later wave than those of its components that are among them."""
    by_key = {variant.key: variant for variant in variants}
    depth: dict[str, int] = {}

    def depth_of(variant: Variant) -> int:
        if variant.key not in depth:
            parents = [by_key[key] for key in component_keys(variant) if key in by_key]
            depth[variant.key] = max((depth_of(parent) + 1 for parent in parents), default=0)
        return depth[variant.key]

    waves: dict[int, list[Variant]] = {}
    for variant in variants:
        waves.setdefault(depth_of(variant), []).append(variant)
    return tuple(tuple(waves[number]) for number in sorted(waves))


def component_keys(variant: Variant) -> tuple[str, ...]:
    """The keys of the variants that become part of this one."""
    return tuple(f"{image}-{variant.target}-{variant.base}" for image in variant.components)


def wave_documents(entries: Sequence[Entry], waves: int) -> list[dict[str, list[dict[str, str]]]]:
    """A forge's matrix for each of `waves` jobs that follow one another; later ones may be empty."""
    by_key = {entry.variant.key: entry for entry in entries}
    split = in_waves([entry.variant for entry in entries])
    filled = [[by_key[variant.key].document() for variant in wave] for wave in split]
    return [{"include": include} for include in [*filled, *([] for _ in range(waves - len(filled)))]]
