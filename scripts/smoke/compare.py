"""A computed result against the right one: within a bound that says where it comes from, or the very same numbers."""

from __future__ import annotations

from typing import Any

from check import Red, spoil


def within(what: str, got: Any, exact: Any, bound: Any) -> dict[str, Any]:
    """Hold a tensor against its float64 reference on the CPU; returns the facts, raises Red beyond the bound.

    bound: what each element may be off, a tensor like `exact`. `of_bound` is the largest part of it that was used.
    """
    import torch

    shapes = [tuple(tensor.shape) for tensor in (got, exact, bound)]
    if not shapes[0] == shapes[1] == shapes[2]:
        raise Red(f"{what}: the result is {shapes[0]}, the reference {shapes[1]}, its bound {shapes[2]}")
    got = got.detach().to("cpu", torch.float64).flatten().clone()
    exact, bound = exact.flatten(), bound.flatten()
    spoil(got, 3 * float(bound[0]))
    for name, numbers in (("values", got), ("numbers of the reference", exact), ("bounds", bound)):
        if not bool(torch.isfinite(numbers).all()):
            raise Red(f"{what}: {int((~torch.isfinite(numbers)).sum())} of {numbers.numel()} {name} are not finite")
    off = (got - exact).abs()
    part = off / bound
    worst = int(part.argmax())
    of_bound = float(part.max())
    if not of_bound <= 1:  # NaN too, of 0 / 0
        raise Red(
            f"{what}: {int((~(part <= 1)).sum())} of {got.numel()} values are beyond their bound; worst: "
            f"{float(got[worst]):.6g} for {float(exact[worst]):.6g}, {of_bound:.4f} times the bound"
        )
    return {"what": what, "of_bound": round(of_bound, 4), "largest_error": float(f"{float(off.max()):.3g}")}


def same(what: str, got: Any, right: Any) -> None:
    """Hold numbers that have to be these, to the bit; Red says how many are others. Two lists, or two tensors."""
    if not isinstance(got, list):
        if got.shape != right.shape:
            raise Red(f"{what}: the result is {tuple(got.shape)}, not {tuple(right.shape)}")
        got, right = got.flatten().tolist(), right.flatten().tolist()
    got = [*got]
    spoil(got)
    wrong = [at for at, (one, other) in enumerate(zip(got, right, strict=True)) if one != other]
    if wrong:
        first = wrong[0]
        raise Red(
            f"{what}: {len(wrong)} of {len(right)} values are wrong; number {first} is {got[first]}, not {right[first]}"
        )


def product_bound(a: Any, b: Any, exact: Any, *, rounding: float, accumulation: float) -> Any:
    """What a product of matrices may be off: its last rounding, and what the sums lose of |a||b|.

    rounding, accumulation: relative, e.g. 2**-8. a, b, exact: float64 on the CPU.
    """
    return exact.abs() * rounding + (a.abs() @ b.abs()) * accumulation + 1e-30
