"""The workflow files of a forge, rendered from one description. Pure: templates come in as texts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_images.ci.matrix import ARM64, Variant, component_keys, in_waves
from spark_images.errors import TemplateError, UsageError, did_you_mean

WORKFLOWS = ("pull-request", "main", "schedule", "bisect", "rollback")
MADE = "# Made by `nox -s ci` from src/spark_images/ci/templates and images/*/image.yaml: change those, not this file."
SEAL = "# sha256 of all that follows: "


@dataclass(frozen=True, kw_only=True)
class Forge:
    """What differs between the places that run workflows."""

    name: str
    folder: str  # where it reads workflows, in a repository
    runner: str  # the label of builds where no variable names one
    check_runner: str  # the same for what builds nothing
    dynamic_matrix: bool  # whether a job's matrix may be another job's output
    timeout_minutes: int = 1440  # where the forge has a limit of its own; ci-job's is below it


# Gitea up to 1.26 expands a matrix when it reads the file (modules/actions/jobparser), before any job has run: there
# every variant has a job of its own, which ends at once where its plan is in the registry.
FORGES = (
    Forge(
        name="github",
        folder=".github/workflows",
        runner="self-hosted",
        check_runner="ubuntu-24.04-arm",
        dynamic_matrix=True,
    ),
    Forge(
        name="gitea",
        folder=".gitea/workflows",
        runner="linux-arm64",
        check_runner="linux-arm64",
        dynamic_matrix=False,
    ),
)


@dataclass(frozen=True, kw_only=True)
class StaticJob:
    """A job that is written out because the forge cannot make it up."""

    id: str
    title: str
    words: str  # the variant on ci-job's command line
    needs: str  # a YAML list of job ids, or ""
    runner: str  # an expression
    gpu_runner: str  # an expression, or ""
    variable: str  # how the target's name stands in the names of variables


def forge_named(name: str) -> Forge:
    """The forge; UsageError for another name."""
    for forge in FORGES:
        if forge.name == name:
            return forge
    names = [forge.name for forge in FORGES]
    raise UsageError(f"no forge `{name}`", hint=did_you_mean(name, names) or f"known: {', '.join(names)}")


def render_workflows(forge: Forge, variants: Sequence[Variant], templates: Mapping[str, str]) -> dict[str, str]:
    """File name -> text of every workflow of a forge. templates: file name -> text of those in ci/templates."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.DictLoader(dict(templates)),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        # Not `{{`, which is the forges' own.
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
        comment_start_string="[#",
        comment_end_string="#]",
    )
    gpu_targets = sorted({variable_of(variant.target) for variant in variants if variant.gpu})
    values = {
        "forge": forge,
        "waves": in_waves(variants),
        "builds": [static_job(forge, variant, variants) for variant in variants],
        "targets": gpu_targets,
    }
    try:
        texts = {f"{name}.yaml": environment.get_template(f"{name}.yaml.j2").render(values) for name in WORKFLOWS}
    except jinja2.TemplateError as err:
        raise TemplateError(f"src/spark_images/ci/templates: {err.message}") from err
    return {name: sealed(text.strip() + "\n") for name, text in texts.items()}


def static_job(forge: Forge, variant: Variant, variants: Sequence[Variant]) -> StaticJob:
    """The job of one variant. Its runner: one of its own platform, else one that cross-builds, else the default."""
    here = {other.key for other in variants}
    needs = [job_id(key) for key in component_keys(variant) if key in here]
    labels = [f"vars.SPARK_IMAGES_RUNNER_{_arch(builder)}" for builder in variant.builders]
    default = forge.runner if ARM64 in variant.builders else forge.runner.replace("arm64", "amd64")
    builders = " || ".join((*labels, f"'{default}'"))
    own = f"vars.SPARK_IMAGES_GPU_RUNNER_{variable_of(variant.target)}"
    return StaticJob(
        id=job_id(variant.key),
        title=variant.title,
        words=f"{variant.image} --target {variant.target} --base {variant.base}",
        needs=f"[{', '.join(needs)}]" if needs else "",
        runner=f"${{{{ {builders} }}}}",
        # Gitea looks for a runner before it looks at `if`: with no label of its own it has to have one that is there.
        gpu_runner=f"${{{{ {own} || {builders} }}}}" if variant.gpu else "",
        variable=variable_of(variant.target),
    )


def job_id(key: str) -> str:
    """A job's id may hold letters, digits, `-` and `_`, and begins with no digit."""
    clean = "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in key)
    return clean if clean[0].isalpha() else f"_{clean}"


def variable_of(target: str) -> str:
    """A target's name as part of a variable's name."""
    return "".join(letter if letter.isalnum() else "_" for letter in target).upper()


def sealed(text: str) -> str:
    """The workflow under two lines that say where it comes from and what it was when it was written."""
    return f"{MADE}\n{SEAL}{_digest(text)}\n{text}"


def is_unedited(text: str) -> bool:
    """Whether a file is one of ours, of whatever version, as it was written."""
    lines = text.split("\n", 2)
    return len(lines) == 3 and lines[1] == f"{SEAL}{_digest(lines[2])}"


def first_difference(there: str, wanted: str) -> int:
    """The first line, from 1, at which two texts differ."""
    pairs = zip(there.splitlines(), wanted.splitlines(), strict=False)
    same = 0
    for mine, yours in pairs:
        if mine != yours:
            break
        same += 1
    return same + 1


def _arch(platform: str) -> str:
    return platform.partition("/")[2].upper()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
