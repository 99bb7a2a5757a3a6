"""GPU smoke checks: run scripts/smoke on the machine, or in a container of an image, and keep what came out.

They prove what no file can: that the code in an image computes the right numbers on this GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.errors import HostProgramError
from spark_images.exclusive import alone
from spark_images.files import write_text
from spark_images.process import capture, quoted, stream
from spark_images.smoke_commands import (
    FIRST,
    LABEL,
    OUTSIDE,
    PROMPTS,
    SCRIPTS,
    TOKENS,
    Container,
    check_command,
    container_command,
    moved_caches,
    target_words,
    wrapper_in,
)
from spark_images.smoke_results import CheckResult, SmokeResults, junit, overall, read_result
from spark_images.terminal import tell
from spark_images.units import GIB
from spark_images.verdict import Colour

if TYPE_CHECKING:
    from spark_images.cache import Cache
    from spark_images.engine.base import Engine
    from spark_images.images import Image
    from spark_images.plan import Plan
    from spark_images.project import Project
    from spark_images.targets import Target

# Beyond the sum of a check's own limits: for one whose clock cannot run, because a library holds the interpreter.
CHECK_LIMIT_S = {FIRST: 300.0, "flashinfer_attention": 3600.0, "vllm_generate": 5400.0, "llamacpp": 3600.0}
OTHER_LIMIT_S = 1800.0
MEMORY_BYTES = 32 * GIB  # of a container; or three quarters of what the host has available, where that is less
REMOVE_TIMEOUT_S = 60
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where checks run: on the machine, or in containers."""

    scripts: Path
    python: str  # the machine's, for what runs outside of containers
    work: Path
    env: Mapping[str, str]
    container: Container | None = None
    llamacpp: Path | None = None  # the folder of its programs on the machine


def smoke_image(
    project: Project, image: Image, target: Target, base: str, *, cache: Cache, engine: str | None
) -> SmokeResults:
    """Run the checks that image.yaml names against the image of today's plan; the results go into its record.

    Without the target's GPU, or checks to run, nothing is run and the verdict is SKIPPED. Raises UsageError when it is
    not built.
    """
    from spark_images.built import built_layout, load_into
    from spark_images.engine import choose_engine
    from spark_images.workfolder import work_folder

    plan = project.plan(image, target, base)
    layout = built_layout(plan, cache)
    # One at a time on a machine: two would share its GPU's memory.
    free = alone(cache.gpu_lock, on_wait=lambda: tell("another process has the GPU; waiting for it"))
    with work_folder(cache, "smoke") as folder, free:
        place = Place(scripts=project.root / "scripts/smoke", python=sys.executable, work=folder, env=dict(os.environ))
        if not image.smoke:
            results = SmokeResults(colour=Colour.SKIPPED, sentence="image.yaml names no smoke check", checks=())
            _keep(results, plan, layout.manifest_digest, folder, cache)
            return results
        first = run_check(FIRST, place, target)
        results = SmokeResults(colour=first.colour, sentence=first.sentence, checks=(first,))
        if first.colour is Colour.GREEN:
            chosen = choose_engine(engine, cache=cache, env=os.environ)
            reference = load_into(chosen, layout, image=plan.image, plan_id=plan.plan_id)
            tell(f"smoke checks of {image.name} for {target.name} in {chosen.name}: {reference}")
            settings = layout.config.get("config", {})
            inside = _in_containers(
                place,
                chosen,
                reference,
                cache,
                wrapper=wrapper_in(settings.get("Entrypoint") or ()),
                moved=moved_caches(settings.get("Env") or (), image.on(base).runtime.folders, str(folder)),
            )
            results = run_checks(image.smoke, inside, target, first=first, of_image=True)
        _keep(results, plan, layout.manifest_digest, folder, cache)
    return results


def _keep(results: SmokeResults, plan: Plan, digest: str, folder: Path, cache: Cache) -> None:
    """The results and logs into the build's record, JUnit XML beside them, and the verdict."""
    from spark_images.record_writer import append_to_last
    from spark_images.verdict import Gate, Verdict
    from spark_images.verdicts import keep_verdict

    if kept := append_to_last(cache, plan.plan_id, "smoke", {**results.document(), "digest": digest}):
        write_text(kept.with_suffix(".xml"), junit(results.checks, suite=f"smoke.{plan.image}.{plan.target}"))
        for log in folder.glob("*.log"):
            shutil.copyfile(log, kept.with_name(f"{kept.stem}-{log.name}"))
    gpu = str(results.checks[0].facts.get("gpu", "no GPU")) if results.checks else "nothing to run"
    evidence = f"{results.sentence} ({gpu})"
    now = datetime.now(UTC)
    verdict = Verdict(gate=Gate.SMOKE, colour=results.colour, digest=digest, when=now, evidence=evidence)
    keep_verdict(cache, plan.plan_id, verdict)


def smoke_host(
    project: Project, target: Target | None, names: Sequence[str], *, work: Path, python: str, llamacpp: Path | None
) -> SmokeResults:
    """Run checks on the machine itself, with what `python` and PATH have; without a target for the GPU that is here."""
    scripts = project.root / "scripts/smoke"
    place = Place(scripts=scripts, python=python, work=work, env=dict(os.environ), llamacpp=llamacpp)
    first = run_check(FIRST, place, target)
    if first.colour is not Colour.GREEN:
        return SmokeResults(colour=first.colour, sentence=first.sentence, checks=(first,))
    return run_checks(names, place, target, first=first, of_image=False)


def run_checks(
    names: Sequence[str], place: Place, target: Target | None, *, first: CheckResult, of_image: bool
) -> SmokeResults:
    """Run these checks one after another: each has the GPU to itself."""
    done = [first, *(run_check(name, place, target) for name in names)]
    colour, sentence = overall(done, of_image=of_image)
    return SmokeResults(colour=colour, sentence=sentence, checks=tuple(done))


def run_check(check: str, place: Place, target: Target | None) -> CheckResult:
    """Run one check to its end or to its limit; all that it prints goes to <work>/<check>.log."""
    command = _command(check, place, target)
    lines: list[str] = []
    limit_s = CHECK_LIMIT_S.get(check, OTHER_LIMIT_S)
    tell(quoted(command))
    with (place.work / f"{check}.log").open("w", encoding="utf-8") as log:

        def on_line(line: str) -> None:
            lines.append(line)
            log.write(line + "\n")

        try:
            status = stream(command, on_line, env=place.env, timeout_s=limit_s)
        except HostProgramError as err:
            if not err.timed_out:  # it was not even started
                raise
            result = read_result(check, lines, status=124, hangs_s=limit_s)
        else:
            result = read_result(check, lines, status=status)
        finally:
            _remove_containers(place)
    tell(f"{check}: {result.colour.value}" + (f", {result.sentence}" if result.sentence else ""))
    return result


def gpu_in_containers(engine: str, folders: Sequence[Path] = CDI_FOLDERS) -> str:
    """Why containers of this engine cannot have the GPU; "" where nothing speaks against it."""
    if engine != "podman":
        return ""  # docker says so itself, and its runtime may be configured in many places
    described = (file for folder in folders if folder.is_dir() for file in folder.iterdir() if file.is_file())
    return "" if any("nvidia.com/gpu" in file.read_text(errors="replace") for file in described) else "no CDI file"


def _command(check: str, place: Place, target: Target | None) -> list[str]:
    words = target_words(check, target)
    if check == FIRST:
        return check_command(check, python=place.python, scripts=str(place.scripts), words=words)
    words += ["--work", str(place.work)]
    if check in OUTSIDE:
        words += _llamacpp_words(place)
        return check_command(check, python=place.python, scripts=str(place.scripts), words=words)
    if place.container:
        inside = check_command(check, python="python3", scripts=SCRIPTS, words=words)
        return [*container_command(place.container, inside[0]), *inside[1:]]
    return check_command(check, python=place.python, scripts=str(place.scripts), words=words)


def _llamacpp_words(place: Place) -> list[str]:
    """The tiny model, what it must say, and how llama.cpp's programs are started."""
    import shlex

    model, expected = place.work / "tiny.gguf", place.work / "tiny.json"
    if not expected.exists():
        from spark_images.tinygguf import greedy_answer, prompt_tokens, write_tiny_gguf

        write_tiny_gguf(model)
        model.chmod(0o644)
        answers = {prompt: greedy_answer(prompt_tokens(prompt), TOKENS).text for prompt in PROMPTS}
        write_text(expected, json.dumps(answers))
    words = ["--model", str(model), "--expect", str(expected)]
    if place.container:
        return [*words, "--launch", shlex.join(container_command(place.container, "{program}", folder="{folder}"))]
    found = place.llamacpp or (Path(server).parent if (server := shutil.which("llama-server")) else None)
    return [*words, "--bin", str(found)] if found else words


def _in_containers(
    place: Place,
    engine: Engine,
    reference: str,
    cache: Cache,
    *,
    wrapper: str,
    moved: tuple[tuple[str, str], ...],
) -> Place:
    """The place with containers of the image."""
    from spark_images.engine.attempt import owner_of
    from spark_images.engine.base import LABEL as ATTEMPT
    from spark_images.engine.base import OWNER

    if problem := gpu_in_containers(engine.name):
        folders = " nor ".join(map(str, CDI_FOLDERS))
        raise HostProgramError(
            f"podman cannot give containers the GPU: {problem}",
            why=[f"neither {folders} has one that names `nvidia.com/gpu`"],
            hint="as root: `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, of NVIDIA's container toolkit",
        )
    place.work.chmod(0o777)  # where the engine gives users other numbers inside
    labels = ((ATTEMPT, "container"), (OWNER, owner_of(cache)), (LABEL, f"{os.getpid()}-{time.monotonic_ns()}"))
    container = Container(
        engine=engine.name,
        image=reference,
        rootless=engine.name == "podman" and os.geteuid() != 0,
        user=f"{os.geteuid()}:{os.getegid()}",
        memory_bytes=min(MEMORY_BYTES, _available_bytes() * 3 // 4),
        scripts=str(place.scripts),
        work=str(place.work),
        labels=labels,
        moved=moved,
        wrapper=wrapper,
    )
    env = {**place.env, **engine.env}
    return Place(scripts=place.scripts, python=place.python, work=place.work, env=env, container=container)


def _remove_containers(place: Place) -> None:
    """What a check that was ended left running."""
    if place.container is None:
        return
    engine, mark = place.container.engine, f"label={LABEL}={dict(place.container.labels)[LABEL]}"
    left = capture([engine, "ps", "-aq", "--filter", mark], env=place.env, timeout_s=REMOVE_TIMEOUT_S)
    for container in left.stdout.decode().split():
        capture([engine, "rm", "-f", container], env=place.env, timeout_s=REMOVE_TIMEOUT_S)


def _available_bytes() -> int:
    from spark_images.memory import host_memory

    return host_memory().available_bytes
