"""Jobs about one image: build and push it, audit what a change makes of it, try it on a GPU.

They may run anywhere and any number of times: what the registry has already is not made again.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_images.ci.job import Job
from spark_images.ci.machine import require_builder, require_machine
from spark_images.ci.matrix import Variant
from spark_images.ci.since import changed_since, plan_of
from spark_images.ci.standing import Standing, standing_of
from spark_images.ci.variants import variant_named, wanted_targets
from spark_images.host import host_platform
from spark_images.images import Image
from spark_images.plan import Plan
from spark_images.targets import Target
from spark_images.verdict import Colour, Gate
from spark_images.verdicts import kept_verdicts

TARGETS, SINCE = "SPARK_IMAGES_TARGETS", "SPARK_IMAGES_SINCE"
GPU_RUNNER = "SPARK_IMAGES_GPU_RUNNER"  # the label of the runner that tries it on its GPU; "" where there is none


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Which image a job is about. builder: the platform that the job was made for, "" for any."""

    image: Image
    target: Target
    base: str
    builder: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """As the verbs take it."""
        return (self.image.name, "--target", self.target.name, "--base", self.base)


def build_job(job: Job, subject: Subject) -> str:
    """Build, verify, push, promote; only what of it is still to be done. The plan_id, "" where it is not asked."""
    if not _wanted(job, subject):
        return ""
    require_builder(subject.builder)
    plan = _planned(job, subject)
    there = _standing(job, plan)
    if there and there.digest:
        job.summary.facts.append(("image", there.reference))
        if there.moved:
            job.ends("Its plan is in the registry and was promoted: there is nothing to do.")
            return ""
        _promote(job, subject, plan)
        return ""
    require_machine(plan, job.cache, job.env)
    _pull_components(job, subject)
    job.steps.verb("build", "build", *subject.words, *job.build_words())
    if _done_by_another(job, plan):
        return plan.plan_id
    job.steps.verb("verify", "verify", *subject.words, *job.engine_words())
    if not job.registry:
        job.ends("Nothing is pushed: $SPARK_IMAGES_REGISTRY names no registry.")
        return plan.plan_id
    if job.steps.verb("push", "push", *subject.words, "--registry", job.registry):
        job.summary.facts.append(("image", f"{job.registry}/{plan.image}:{plan.plan_id[:12]}"))
    _promote(job, subject, plan)
    return plan.plan_id


def audit_job(job: Job, subject: Subject) -> str:
    """Build and audit what a change makes anew; nothing is pushed. The plan_id, "" where nothing changes."""
    if not _wanted(job, subject):
        return ""
    require_builder(subject.builder)
    variant = _variant(job, subject)
    since, builders = job.env.get(SINCE), {variant.key: host_platform()}
    if since and not changed_since(since, job.project, (variant,), builders, job.cache):
        job.ends(f"The change since {since[:12]} does not touch its plan: there is nothing to audit.")
        return ""
    plan = _planned(job, subject)
    require_machine(plan, job.cache, job.env)
    job.steps.verb("build", "build", *subject.words, *job.build_words())
    job.steps.verb("audit", "audit", *subject.words, "--json", str(job.results / "audit.json"))
    return plan.plan_id


def gpu_job(job: Job, subject: Subject) -> str:
    """Pull what was pushed, try it on the GPU that is here, promote; one at a time on a machine."""
    if not _wanted(job, subject):
        return ""
    variant = _variant(job, subject)
    builders = (subject.builder,) if subject.builder else variant.builders
    if not job.registry:
        job.ends("There is nothing to pull: $SPARK_IMAGES_REGISTRY names no registry.")
        return ""
    plans = {builder: plan_of(job.project, variant, builder) for builder in builders}
    found = {builder: standing_of(job.registry, variant.image, plan, job.env) for builder, plan in plans.items()}
    builder = next((builder for builder, standing in found.items() if standing.digest), "")
    if not builder:
        job.ends("Its plan is not in the registry: the job that builds it did not get that far.")
        return ""
    there = found[builder]
    job.summary.facts += [("plan", there.plan_id), ("compiled on", builder), ("image", there.reference)]
    if verdict := _smoke_verdict(job, there):
        job.ends(f"It was tried on its GPU already, and was {verdict}: there is nothing to do.")
        return there.plan_id
    job.steps.verb("pull", "pull", there.repository.at(there.digest), *job.engine_words())
    job.steps.verb(
        "smoke",
        *("smoke", *subject.words, "--builder", builder, "--require-gpu", *job.engine_words()),
        *("--junit", str(job.results / "junit-gpu.xml")),
    )
    job.steps.verb("promote", "promote", *subject.words, "--registry", job.registry, "--plan", there.plan_id[:12])
    return there.plan_id


def _wanted(job: Job, subject: Subject) -> bool:
    targets = wanted_targets(job.project, job.env.get(TARGETS, ""))
    if targets and subject.target.name not in targets:
        job.ends(f"Target {subject.target.name} is not among those of ${TARGETS}: {', '.join(targets)}.")
        return False
    return True


def _variant(job: Job, subject: Subject) -> Variant:
    return variant_named(job.project, subject.image, subject.target, subject.base)


def _planned(job: Job, subject: Subject) -> Plan:
    plan = job.project.plan(subject.image, subject.target, subject.base)
    job.summary.facts += [("plan", plan.plan_id), ("compiled on", plan.builder)]
    return plan


def _standing(job: Job, plan: Plan) -> Standing | None:
    return standing_of(job.registry, plan.image, plan.plan_id, job.env) if job.registry else None


def _promote(job: Job, subject: Subject, plan: Plan) -> None:
    """Unless a GPU has the last word."""
    verdicts = kept_verdicts(job.cache, plan.plan_id)
    if job.env.get(GPU_RUNNER) and not any(
        verdict.gate is Gate.SMOKE and verdict.colour is Colour.GREEN for verdict in verdicts
    ):
        job.ends("The job that tries it on its GPU promotes it.")
        return
    job.steps.verb("promote", "promote", *subject.words, "--registry", job.registry)


def _pull_components(job: Job, subject: Subject) -> None:
    """What becomes part of the image comes from the registry, where the job that built it has put it."""
    for component in job.project.components(subject.image.on(subject.base)):
        there = _standing(job, job.project.plan(component, subject.target, subject.base))
        if there and there.digest:
            job.steps.verb(f"pull {component.name}", "pull", there.reference, *job.engine_words())


def _done_by_another(job: Job, plan: Plan) -> bool:
    """Whether another runner with the same job was faster; the same plan gives the same image."""
    if job.steps.status:
        return False
    there = _standing(job, plan)
    if there and there.digest and there.moved:
        job.ends("Another runner has built, pushed and promoted it meanwhile.")
        return True
    return False


def _smoke_verdict(job: Job, there: Standing) -> str:
    """What an earlier job found on a GPU; "" where none did."""
    from spark_images.registry.client import Client
    from spark_images.registry.statements import attached_verdicts
    from spark_images.verdict import latest_verdicts

    client = Client(there.repository, env=job.env)
    verdict = latest_verdicts(attached_verdicts(client, there.digest), there.digest).get(Gate.SMOKE)
    return verdict.colour.value if verdict and verdict.colour is not Colour.SKIPPED else ""
