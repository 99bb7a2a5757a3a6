"""pins.yaml as text: values of one pin changed, and every other character left as it is. Pure.

A value is found by its place in the YAML, not by its looks, so neither comments nor quotes nor another pin with the
same version matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import yaml

Path: TypeAlias = tuple[str | int, ...]  # ("packages", 0)


def edit_pin(text: str, pin: str, values: Mapping[Path, str | None]) -> str:
    """The text with these values of the pin: scalars without their quotes, lists as YAML's flow style writes them.

    None takes a key away with its line, or with its comma where it shares the line. A key of the pin that is not there
    yet is added at its end. Raises KeyError for a pin, or a path of several steps, that is not there.
    """
    for path, value in values.items():
        node = _pin(text, pin)
        if value is None:
            text = _remove(text, node, path[0])
        elif len(path) == 1 and path[0] not in dict(_entries(node)):
            text = _append(text, node, str(path[0]), value)
        else:
            text = _replace(text, _at(node, path), value)
    return text


def pin_block(text: str, pin: str) -> str:
    """The lines of one pin, as replace_block takes them. KeyError where there is none of this name."""
    begin, end = _span(text, pin)
    return text[begin:end]


def replace_block(text: str, pin: str, block: str) -> str:
    """The text with the pin's lines replaced; a pin that is not there yet is added at the end."""
    try:
        begin, end = _span(text, pin)
    except KeyError:
        return text.rstrip("\n") + "\n" + block
    return text[:begin] + block + text[end:]


def pin_names(text: str) -> tuple[str, ...]:
    """The pins of a pins.yaml, in its order."""
    return tuple(key for key, value in _entries(_root(text)) if isinstance(value, yaml.MappingNode))


def _root(text: str) -> yaml.MappingNode:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)  # whoever edits pins.yaml has read it
    return root


def _entries(node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        yield from ((key.value, value) for key, value in node.value)


def _pin(text: str, name: str) -> yaml.MappingNode:
    node = dict(_entries(_root(text)))[name]
    assert isinstance(node, yaml.MappingNode)  # as above
    return node


def _at(node: yaml.Node, path: Path) -> yaml.Node:
    for step in path:
        node = dict(_entries(node))[step] if isinstance(step, str) else node.value[step]
    return node


def _replace(text: str, node: yaml.Node, value: str) -> str:
    begin, end = node.start_mark.index, _end(node)
    quote = text[begin] if isinstance(node, yaml.ScalarNode) and text[begin] in "\"'" else ""
    return f"{text[:begin]}{quote}{value}{quote}{text[end:]}"


def _append(text: str, node: yaml.MappingNode, key: str, value: str) -> str:
    end = _end(node)
    if node.flow_style:
        return f"{text[: end - 1]}, {key}: {value}{text[end - 1 :]}"
    first = node.value[0][0].start_mark
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    return f"{text[:line_end]}\n{' ' * first.column}{key}: {value}{text[line_end:]}"


def _remove(text: str, node: yaml.MappingNode, key: str | int) -> str:
    """Without the key; as it was where there is none."""
    keys = [(entry.value, entry.start_mark.index, _end(value)) for entry, value in node.value]
    place = next((place for place, (name, _, _) in enumerate(keys) if name == key), None)
    if place is None:
        return text
    _, begin, end = keys[place]
    if not node.flow_style:
        line_end = text.find("\n", end)
        return text[: text.rfind("\n", 0, begin) + 1] + ("" if line_end < 0 else text[line_end + 1 :])
    if place:  # with the comma before it
        return text[: keys[place - 1][2]] + text[end:]
    return text[:begin] + text[keys[1][1] if len(keys) > 1 else end :]


def _end(node: yaml.Node) -> int:
    """Where a node ends; a block's own mark is where the next one begins."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _span(text: str, pin: str) -> tuple[int, int]:
    """From the pin's key to the end of its last line."""
    for key, value in _root(text).value:
        if key.value == pin:
            end = text.find("\n", _end(value))
            return key.start_mark.index, len(text) if end < 0 else end + 1
    raise KeyError(pin)
