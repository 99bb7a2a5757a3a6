"""The small image's own tests: enough to see that `test-<image>` runs them inside the container."""

from testinfra.host import Host


def test_the_container_runs_as_the_spark_user(inside: Host) -> None:
    assert inside.user().uid == 10001


def test_the_program_is_there(inside: Host) -> None:
    assert inside.file("/opt/hello/hello").mode & 0o111
