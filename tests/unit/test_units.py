import pytest

from spark_images.units import GIB, MIB, format_duration, format_size


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (17, "17 bytes"),
        (3 * 1024, "3 KiB"),
        (512 * MIB, "512 MiB"),
        (48 * GIB, "48 GiB"),
        (2**40, "1 TiB"),
        (int(47.92 * GIB), "47.9 GiB"),
    ],
)
def test_sizes_have_one_decimal_where_it_says_something(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (7, "0:07"), (1808, "30:08"), (3723.9, "1:02:03")])
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
