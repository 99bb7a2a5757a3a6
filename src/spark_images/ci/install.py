"""The workflow files on disk: committed below ci/, and installed where a forge reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from spark_images.ci.variants import variants_of
from spark_images.ci.workflows import (
    FORGES,
    Forge,
    first_difference,
    forge_named,
    is_unedited,
    render_workflows,
)
from spark_images.errors import DriftError
from spark_images.files import write_text
from spark_images.project import Project
from spark_images.terminal import tell

TEMPLATES = Path(__file__).parent / "templates"


def rendered(project: Project, forge: Forge) -> dict[str, str]:
    """File name -> text of a forge's workflows for the images of a project."""
    templates = {path.name: path.read_text(encoding="utf-8") for path in TEMPLATES.glob("*.j2")}
    return render_workflows(forge, variants_of(project), templates)


def write_workflows(project: Project, forge: str | None, *, force: bool) -> None:
    """Write those of every forge below ci/; with a forge named, also where that one reads them.

    DriftError where an installed file was edited by hand, unless `force`: nothing is written then.
    """
    chosen = [forge_named(forge)] if forge else []
    for one in chosen:
        folder = project.root / one.folder
        texts = rendered(project, one)
        if not force:
            _refuse_edited(project, [folder / name for name in texts], texts)
    for one in FORGES:
        _write(project, project.root / "ci" / one.name, rendered(project, one))
    for one in chosen:
        _write(project, project.root / one.folder, rendered(project, one))


def check_workflows(project: Project) -> None:
    """DriftError where a file below ci/, or an installed one, is not what it should be; file and line of each."""
    found: list[str] = []
    for forge in FORGES:
        texts = rendered(project, forge)
        found += _drifted(project, project.root / "ci" / forge.name, texts, required=True)
        found += _drifted(project, project.root / forge.folder, texts, required=False)
    if found:
        raise DriftError(
            "workflow files are not what their description renders to",
            why=found,
            hint="`./noxw -s ci` writes ci/, `./noxw -s ci -- --forge gitea` (or github) installs; "
            "what was edited by hand belongs into src/spark_images/ci/templates",
        )
    tell("every workflow file is what its description renders to")


def _drifted(project: Project, folder: Path, texts: dict[str, str], *, required: bool) -> Iterable[str]:
    if not (required or any((folder / name).exists() for name in texts)):
        return
    for name, text in texts.items():
        path = folder / name
        place = path.relative_to(project.root)
        if not path.exists():
            yield f"{place}: it is missing"
        elif (there := path.read_text(encoding="utf-8")) != text:
            said = "it is of another version" if is_unedited(there) else "it was edited by hand"
            yield f"{place}:{first_difference(there, text)}: {said}"


def _refuse_edited(project: Project, paths: Sequence[Path], texts: dict[str, str]) -> None:
    found = []
    for path in paths:
        if path.exists() and not is_unedited(there := path.read_text(encoding="utf-8")):
            if there == texts[path.name]:
                continue
            line = first_difference(there, texts[path.name])
            found.append(f"{path.relative_to(project.root)}:{line}: it was edited by hand")
    if found:
        raise DriftError(
            "workflows that were edited by hand are not overwritten",
            why=found,
            hint="take the change over into src/spark_images/ci/templates, then `--force`",
        )


def _write(project: Project, folder: Path, texts: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
            tell(f"wrote {path.relative_to(project.root)}")
