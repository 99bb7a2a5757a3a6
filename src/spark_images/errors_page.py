"""docs/errors.md, from errors.py. To make it anew: `.venv/bin/python -m spark_images.errors_page >docs/errors.md`."""

from __future__ import annotations

from collections.abc import Iterator

from spark_images.errors import SparkImagesError

_TOP = """\
# Errors

<!-- Made from src/spark_images/errors.py: `.venv/bin/python -m spark_images.errors_page >docs/errors.md` -->

Whatever a user can cause ends with a text like this one on stderr, and with the exit status of its kind, under
`./noxw` as well:

```
error: no target `gb1` (did you mean `gb10`?)

hint: known: gb10, rtx50, hopper, cpu
```

First what failed and where, then facts, then after `because:` what it comes from, and at the end what to do. A
traceback (status 1) is a mistake of ours. Status 1 without one ends `update-pins` where a proposal failed.

| status | means | mostly because | what to do |
|---|---|---|---|
"""


def errors() -> tuple[type[SparkImagesError], ...]:
    """Every class of errors, by exit status."""
    return tuple(sorted(_below(SparkImagesError), key=lambda kind: kind.exit_status))


def page() -> str:
    """The text of docs/errors.md."""
    return _TOP + "".join(_row(kind) for kind in errors())


def _below(kind: type[SparkImagesError]) -> Iterator[type[SparkImagesError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _row(kind: type[SparkImagesError]) -> str:
    name = f"**{kind.exit_status}** {kind.__name__}"
    means = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
    return f"| {name} | {means} | {kind.usual} | {kind.remedy} |\n"


if __name__ == "__main__":
    print(page(), end="")
