"""The kernels of the Triton check. Triton reads their source from this file, and imports must precede them."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _add(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def _product(a, b, out, rows, columns, depth, TILE: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, depth, STEP):
        k = start + tl.arange(0, STEP)
        on_left = (row[:, None] < rows) & (k[None, :] < depth)
        on_right = (k[:, None] < depth) & (column[None, :] < columns)
        left = tl.load(a + row[:, None] * depth + k[None, :], mask=on_left, other=0)
        right = tl.load(b + k[:, None] * columns + column[None, :], mask=on_right, other=0)
        total = tl.dot(left, right, total)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    tl.store(out + row[:, None] * columns + column[None, :], total, mask=inside)


def add(x: Any, y: Any) -> Any:
    """x + y, float32."""
    out = torch.empty_like(x)
    _add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


def product(a: Any, b: Any) -> Any:
    """a @ b of bf16 matrices, in float32."""
    out = torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=torch.float32)
    grid = (triton.cdiv(a.shape[0], 64), triton.cdiv(b.shape[1], 64))
    _product[grid](a, b, out, a.shape[0], b.shape[1], a.shape[1], TILE=64, STEP=32)
    return out
