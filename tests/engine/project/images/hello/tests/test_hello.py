"""The small image's own tests: enough to see that `test-<image>` runs them inside the container."""


def test_the_container_runs_as_the_spark_user(host):
    assert host.user().uid == 10001


def test_the_program_is_there(host):
    assert host.file("/opt/hello/hello").mode & 0o111
