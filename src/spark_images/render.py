"""From a template and frozen values to the text of a Dockerfile. Pure: templates come in as texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from spark_images.errors import TemplateError
from spark_images.imageconfig import ImageConfig
from spark_images.images import Image
from spark_images.ingredients import BUILD_SDISTS, Source
from spark_images.targets import Target


def render_dockerfile(
    *,
    image: Image,
    target: Target,
    base: str,
    source: Source,
    config: ImageConfig,
    templates: Mapping[str, str],
    command: str = "",
) -> str:
    """The Dockerfile of one image x target x base, one text for both engines; ends in a newline.

    templates: file name -> text of everything in templates/. command: how a source with rules of its own is compiled.
    Raises TemplateError naming file and line.
    """
    import jinja2

    def load(name: str) -> tuple[str, str, None] | None:
        return (templates[name], name, None) if name in templates else None  # with a file name, for tracebacks

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["quoted"] = quoted
    environment.filters["exec_form"] = exec_form
    try:
        text = environment.get_template(image.template).render(
            image=image,
            target=target,
            base=base,
            source=source,
            config=config,
            epoch=config.epoch,
            toolkit=image.compile.toolkit(target.name),
            command=command,
        )
    except jinja2.TemplateNotFound as err:
        raise TemplateError(
            f"templates/{err.name}: no such template", hint=f"{image.path} names it under `template`"
        ) from err
    except jinja2.TemplateSyntaxError as err:
        raise TemplateError(f"templates/{err.filename or err.name}:{err.lineno}: {err.message}") from err
    except jinja2.UndefinedError as err:
        raise TemplateError(
            f"templates/{_failing_place(err, image.template)}: {err.message}",
            hint="a template sees `image`, `target`, `base`, `source`, `config`, `epoch`, `toolkit` and `command`",
        ) from err
    if source.sdists and BUILD_SDISTS not in text:
        raise TemplateError(
            f"templates/{image.template}: no step makes wheels of {', '.join(source.sdists)}, which come as sdists",
            hint="let `stages.install` lay the wheels out, as templates/wheels.Dockerfile.j2 does",
        )
    return text


def quoted(value: str) -> str:
    """A Dockerfile word in double quotes; nothing in it is expanded.

    Raises TemplateError for a line break or another control character, which no quoting makes safe.
    """
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in value):
        raise TemplateError(f"a value holds a control character: {value!r}")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def exec_form(words: Sequence[str]) -> str:
    """A Dockerfile command in exec form: a JSON array."""
    return json.dumps(list(words))


def _failing_place(err: BaseException, template: str) -> str:
    """File and line of the innermost template frame in a traceback: jinja2 keeps them only there."""
    place = template
    trace = err.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.endswith(".j2"):
            place = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
