"""The verb `audit`: find what is meant, read it, judge it, say what was found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename

from spark_images.audit.bring import bring_layout, inspect_config, source_of
from spark_images.audit.checks import Finding, Severity
from spark_images.audit.collect import of_layout, of_wheel, subject_of
from spark_images.audit.facts import Subject
from spark_images.audit.installed import wheel_platforms
from spark_images.audit.judge import judge
from spark_images.audit.kept import KeptSources
from spark_images.audit.report import document, findings_text, summary, table
from spark_images.audit.scan import Scan, Scanner
from spark_images.built import built_layout
from spark_images.cache import Cache
from spark_images.errors import AuditError, UsageError, did_you_mean
from spark_images.files import write_text
from spark_images.imageconfig import TARGET_LABEL
from spark_images.images import Image
from spark_images.oci import Layout, read_layout
from spark_images.project import Project
from spark_images.record_writer import append_to_last
from spark_images.targets import Target
from spark_images.terminal import tell, working
from spark_images.units import format_size
from spark_images.verdict import Colour, Gate, Verdict
from spark_images.verdicts import keep_verdict
from spark_images.workfolder import work_folder


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an audit found."""

    subject: Subject
    scan: Scan
    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """What must not be."""
        return tuple(finding for finding in self.findings if finding.check.severity is Severity.FAIL)

    @property
    def document(self) -> dict[str, Any]:
        """All of it as JSON-able data."""
        numbers = (self.scan.count, self.scan.bytes, self.scan.seconds)
        return document(self.subject, self.findings, files=numbers[0], size_bytes=numbers[1], seconds=numbers[2])


@dataclass(frozen=True, kw_only=True)
class Auditor:
    """Audits with the targets, locks and knowledge of a clone. cuobjdump: None, and GPU code counts as unreadable."""

    project: Project
    cache: Cache
    cuobjdump: Path | None

    def wheel(self, wheel: Path, target: Target) -> Result:
        """A wheel as it lies there; UsageError where it has no wheel's name."""
        try:
            platforms = wheel_platforms(wheel.name)
        except InvalidWheelFilename as err:
            raise UsageError(f"`{wheel.name}` is not a wheel's name") from err
        about = Subject(name=wheel.name, target=target, tree={}, wheel_platforms=platforms)
        with work_folder(self.cache, "audit") as folder, KeptSources(folder) as sources:
            with working(f"reading {wheel.name}, {format_size(wheel.stat().st_size)}"):
                scan = Scanner(cuobjdump=self.cuobjdump, spool=folder, sources=sources).wheel(wheel)
            return _judged(of_wheel(about, scan, sources), scan)

    def layout(self, layout: Layout, about: Subject) -> Result:
        """An image; about: what is known of it before it is read."""
        knowledge = self.project.root / "images" / "vllm-knowledge.json"
        with work_folder(self.cache, "audit") as folder, KeptSources(folder) as sources:
            size = format_size(sum(layer.size_bytes for layer in layout.layers))
            with working(f"reading {about.name}: {len(layout.layers)} layers, {size}"):
                scan = Scanner(cuobjdump=self.cuobjdump, spool=folder, sources=sources).layers(layout)
            return _judged(of_layout(about, layout, scan, sources, knowledge=knowledge), scan)

    def built(self, image: Image, target: Target, base: str) -> Result:
        """The image of today's plan against what its files, pins and locks say; what came out is kept with its record.

        Raises UsageError when it is not built.
        """
        plan = self.project.plan(image, target, base)
        layout = built_layout(plan, self.cache)
        result = self.layout(layout, subject_of(self.project, image, target, base))
        append_to_last(self.cache, plan.plan_id, "audit", {**result.document, "digest": layout.manifest_digest})
        verdict = Verdict(
            gate=Gate.AUDIT,
            colour=Colour.RED if result.failures else Colour.GREEN,
            digest=layout.manifest_digest,
            when=datetime.now(UTC),
            evidence=f"failures: {len(result.failures)}, warnings: {len(result.findings) - len(result.failures)}",
        )
        keep_verdict(self.cache, plan.plan_id, verdict)
        return result

    def folder(self, path: Path, target: str | None) -> Result:
        """The image in an OCI layout on disk."""
        layout = read_layout(path)
        chosen = target_of(self.project, target, _label(layout.config), str(path))
        return self.layout(layout, Subject(name=str(path), target=chosen, tree={}))

    def reference(self, what: str, target: str | None) -> Result:
        """An image that skopeo can reach; the copy that is made of it is gone afterwards."""
        source = source_of(what, (image.name for image in self.project.images))
        label = "" if target else _label(inspect_config(source))
        chosen = target_of(self.project, target, label, what)
        with work_folder(self.cache, "audit-image") as folder:
            layout = read_layout(bring_layout(source, platform=chosen.platform, folder=folder))
            return self.layout(layout, Subject(name=what, target=chosen, tree={}))


def _judged(subject: Subject, scan: Scan) -> Result:
    return Result(subject=subject, scan=scan, findings=judge(subject))


def finish(result: Result, json_file: Path | None) -> None:
    """Print what was found, write it as JSON where that is wanted; AuditError when something must not be."""
    subject, scan = result.subject, result.scan
    for line in (*table(subject), *findings_text(result.findings)):
        print(line)
    compiled = f"; {subject.sources.read} Python files that its commands import" if subject.sources.read else ""
    print(summary(files=scan.count, size_bytes=scan.bytes, seconds=scan.seconds) + compiled)
    if json_file is not None:
        write_text(json_file, json.dumps(result.document, indent=2, ensure_ascii=False) + "\n")
    if failures := result.failures:
        counts = dict.fromkeys((finding.check.id for finding in failures), 0)
        for finding in failures:
            counts[finding.check.id] += 1
        raise AuditError(
            f"`{subject.name}` does not hold what it must; findings: {len(failures)}",
            why=[f"{name}: {count}" for name, count in counts.items()],
            hint="each is listed above; why it is looked for says `.venv/bin/python -m spark_images audit --list`",
        )
    warnings = f"; warnings: {len(result.findings)}" if result.findings else ""
    tell(f"`{subject.name}` holds what it must{warnings}")


def target_of(project: Project, named: str | None, label: str, what: str) -> Target:
    """The target that was named, else the one of the image's label; UsageError where there is neither."""
    known = [target.name for target in project.targets]
    name = named or label
    if not name:
        hint = f"`--target` names one of {', '.join(known)}"
        raise UsageError(f"`{what}` does not say for which machine it is", hint=hint)
    for target in project.targets:
        if target.name == name:
            return target
    said = "" if named else f", which the label of `{what}` names"
    raise UsageError(f"no target `{name}`{said}", hint=did_you_mean(name, known) or f"known: {', '.join(known)}")


def _label(config: Mapping[str, Any]) -> str:
    inner = config.get("config") or {}
    return str((inner.get("Labels") or {}).get(TARGET_LABEL, ""))
