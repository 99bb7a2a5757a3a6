"""What is read of a release, from one that is cut down; tests/unit/test_vllm_history.py has the real ones."""

from __future__ import annotations

import pytest
import vllm_release
from vllm_release import changed

from spark_images.errors import UpstreamError
from spark_images.vllm.fields import Takes
from spark_images.vllm.flags import Flag
from spark_images.vllm.names import Variable, read_names

ARG_UTILS, CLI_ARGS, ENVS = "vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py", "vllm/envs.py"
NAMES = read_names(vllm_release.FILES)


def flag(files: dict[str, str], name: str) -> Flag:
    return read_names(files).flags[name]


def refused(files: dict[str, str]) -> str:
    with pytest.raises(UpstreamError) as caught:
        read_names(files)
    return caught.value.what


@pytest.mark.parametrize(
    "expected",
    [
        Flag(name="--headless", takes=Takes.NOTHING),
        Flag(name="--api-key", aliases=("-k",)),
        Flag(name="--max-model-len"),
        Flag(name="--kv-cache-dtype", words=("auto", "fp8")),
        Flag(name="--enable-prefix-caching", takes=Takes.TOGGLE),
        Flag(name="--attention-backend", words=("FLASHINFER", "FLASH_ATTN", "auto")),
        Flag(name="--compilation-config", aliases=("-cc",)),
        Flag(name="--compilation-config.mode", words=("eager", "inductor")),
        Flag(name="--compilation-config.passes.fuse", words=("true", "false")),
    ],
)
def test_flag_is_what_its_call_and_its_field_make_it(expected: Flag) -> None:
    assert NAMES.flags[expected.name] == expected


def test_values_of_registries_and_of_types_that_admit_any_text_are_known() -> None:
    assert NAMES.flags["--reasoning-parser"].words == ("qwen3", "nemotron_v3")
    assert NAMES.flags["--tool-call-parser"].words == ("hermes",)
    assert NAMES.flags["--quantization"] == Flag(name="--quantization", aliases=("-q",), words=("awq", "fp8"))
    assert NAMES.flags["--load-format"].words == ("auto", "fastsafetensors")


def test_positional_arguments_and_computed_fields_are_no_flags() -> None:
    assert {"--model-tag", "--compilation-config.seen"} & NAMES.flags.keys() == set()


def test_flag_is_found_by_its_alias_and_a_toggle_by_its_negation() -> None:
    assert NAMES.flag("-q") == NAMES.flags["--quantization"]
    assert NAMES.flag("--no-enable-prefix-caching") == NAMES.flags["--enable-prefix-caching"]
    assert NAMES.flag("--no-headless") is None


def test_choices_that_are_computed_leave_a_set_open() -> None:
    found = flag(
        changed(ARG_UTILS, '"--max-model-len", **', '"--max-model-len", choices=["1"] + more(), **'), "--max-model-len"
    )

    assert (found.words, found.open) == (("1",), "the release computes values as it starts")


def test_choices_that_grow_leave_a_set_open() -> None:
    files = changed(
        ARG_UTILS,
        "cache_kwargs = get_kwargs(CacheConfig)\n",
        'cache_kwargs = get_kwargs(CacheConfig)\n        cache_kwargs["cache_dtype"]["choices"] += more()\n',
    )

    assert flag(files, "--kv-cache-dtype").open == "the release adds values to it as it starts"


def test_type_that_cannot_be_followed_leaves_a_set_open() -> None:
    files = changed("vllm/config/__init__.py", 'CacheDType = Literal["auto", "fp8"]', "from vllm.new import CacheDType")

    assert flag(files, "--kv-cache-dtype").open == "`CacheDType` could not be followed"


def test_disable_is_the_inverse_of_enable_where_the_parser_has_it() -> None:
    files = changed("vllm/utils/argparse_utils.py", "FlexibleArgumentParser", "EnableDisableAction")

    assert flag(files, "--disable-prefix-caching").takes is Takes.NOTHING
    assert "--disable-prefix-caching" not in NAMES.flags


@pytest.mark.parametrize(
    "call",
    ["group.add_argument(name())", "group.add_argument('--one', **options())", "OtherArgs.add_cli_args(parser)"],
)
def test_flag_made_in_an_unknown_way_is_refused_with_its_place(call: str) -> None:
    old = '        group.add_argument("--load-format"'

    text = refused(changed(ARG_UTILS, old, f"        {call}\n{old}"))

    assert text == f"{ARG_UTILS}:18: flags are made in a way that is not known here"


def test_flags_in_a_loop_of_an_unknown_kind_are_refused() -> None:
    text = refused(changed(CLI_ARGS, "for key, value in frontend_kwargs.items():", "while more():"))

    assert "flags are made in a way that is not known here" in text


def test_release_with_few_flags_was_not_understood() -> None:
    text = refused(changed(CLI_ARGS, "    parser = EngineArgs.add_cli_args(parser)\n", ""))

    assert text.startswith("4 flags of `vllm serve` were found")


@pytest.mark.parametrize(
    "expected",
    [
        Variable(name="VLLM_LOGGING_LEVEL"),
        Variable(name="VLLM_ALLREDUCE", words=("auto", "ring")),
        Variable(name="VLLM_LATER", open="the release computes its values as it starts"),
        Variable(name="VLLM_OLD", words=("a",), instead="Use --new."),
    ],
)
def test_variable_has_the_values_that_are_written(expected: Variable) -> None:
    assert NAMES.variables[expected.name] == expected


def test_variables_that_are_computed_are_refused_with_their_place() -> None:
    text = refused(changed(ENVS, '    "CUDA_HOME"', '    **more(),\n    "CUDA_HOME"'))

    assert text == "vllm/envs.py:3: expected a dictionary whose keys are all written out"


def test_registry_that_has_moved_is_said() -> None:
    files = {path: text for path, text in vllm_release.FILES.items() if path != "vllm/reasoning/__init__.py"}

    assert refused(files) == "there is no file `vllm/reasoning/__init__.py`"
