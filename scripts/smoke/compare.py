"""A computed result against an exact one, element by element, within a bound that says where it comes from."""

from __future__ import annotations

from typing import Any

from check import Red


def within(what: str, got: Any, exact: Any, bound: Any) -> dict[str, Any]:
    """Hold a tensor against its float64 reference on the CPU; returns the facts, raises Red beyond the bound.

    bound: what each element may be off, a tensor like `exact`. `of_bound` is the largest part of it that was used.
    """
    import torch

    got = got.detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(got).all()):
        raise Red(f"{what}: {int((~torch.isfinite(got)).sum())} of {got.numel()} values are not finite")
    off = (got - exact).abs()
    part = off / bound
    worst = int(part.argmax())
    of_bound = round(float(part.max()), 4)
    if of_bound > 1:
        raise Red(
            f"{what}: {int((part > 1).sum())} of {got.numel()} values are beyond their bound; worst: "
            f"{float(got.flatten()[worst]):.6g} for {float(exact.flatten()[worst]):.6g}, "
            f"{of_bound} times the bound"
        )
    return {"what": what, "of_bound": of_bound, "largest_error": float(f"{float(off.max()):.3g}")}


def product_bound(a: Any, b: Any, exact: Any, *, rounding: float, accumulation: float) -> Any:
    """What a product of matrices may be off: its last rounding, and what the sums lose of |a||b|.

    rounding, accumulation: relative, e.g. 2**-8. a, b, exact: float64 on the CPU.
    """
    return exact.abs() * rounding + (a.abs() @ b.abs()) * accumulation + 1e-30
