"""All gates of a built image in turn: audit, tests, GPU smoke. One that fails does not keep the others from running."""

from __future__ import annotations

from collections.abc import Callable

from spark_images.audit.run import Auditor, finish
from spark_images.built import built_layout
from spark_images.cache import Cache
from spark_images.cuobjdump import cuobjdump_of
from spark_images.errors import CheckError, InterruptedByUser, SparkImagesError
from spark_images.images import Image
from spark_images.imagetest_run import test
from spark_images.project import Project
from spark_images.smoke import smoke_image
from spark_images.smoke_report import say
from spark_images.targets import Target
from spark_images.terminal import tell
from spark_images.verdict import Gate, all_green, latest_verdicts, obstacles
from spark_images.verdicts import kept_verdicts


def verify(
    project: Project,
    image: Image,
    target: Target,
    base: str,
    *,
    cache: Cache,
    engine: str | None,
    require_gpu: bool,
) -> None:
    """Run every gate and say what the verdicts allow. After all have run CheckError names the gates that failed.

    Where none is red, but one could not be run here, its own error is raised.
    """
    plan = project.plan(image, target, base)
    layout = built_layout(plan, cache)

    def audit() -> None:
        auditor = Auditor(project=project, cache=cache, cuobjdump=cuobjdump_of(project, cache))
        finish(auditor.built(image, target, base), None)

    def try_on_gpu() -> None:
        results = smoke_image(project, image, target, base, cache=cache, engine=engine)
        say(results, what=image.name, require_gpu=require_gpu, as_json=False, junit_file=None)

    gates: dict[Gate, Callable[[], None]] = {
        Gate.AUDIT: audit,
        Gate.TEST: lambda: test(project, image, target, base, cache=cache, engine=engine, pytest=()),
        Gate.SMOKE: try_on_gpu,
    }
    failed: dict[Gate, SparkImagesError] = {}
    for gate, run in gates.items():
        try:
            run()
        except InterruptedByUser:
            raise
        except SparkImagesError as err:  # red, or something that it needs is not to be had here
            failed[gate] = err
            tell(err.render())
    verdicts = latest_verdicts(kept_verdicts(cache, plan.plan_id), layout.manifest_digest)
    tell(f"{image.name} for {target.name} on {base}: {layout.manifest_digest}")
    tell(*(f"  {gate.value:6} {one.colour.value}: {one.evidence}" for gate, one in verdicts.items()))
    if failed and not any(isinstance(err, CheckError) for err in failed.values()):
        raise next(iter(failed.values()))  # nothing is wrong with the image; CI may try again
    if failed:
        raise CheckError(
            f"`{image.name}` did not pass {', '.join(gate.value for gate in failed)}",
            why=[f"{gate.value}: {err.what}" for gate, err in failed.items()],
            hint=f"each gate alone: {', '.join(f'`./noxw -s {gate.value}-{image.name}`' for gate in failed)}",
        )
    if blocked := obstacles(verdicts):
        alone = (f"`./noxw -s {said.partition(':')[0]}-{image.name}`" for said in blocked)
        raise CheckError(
            f"`{image.name}` has gates without a verdict", why=blocked, hint=f"each gate alone: {', '.join(alone)}"
        )
    moves = "every readable tag" if all_green(verdicts) else "the target's tags, but not `latest`"
    tell(f"`promote-{image.name}` may move {moves}")
