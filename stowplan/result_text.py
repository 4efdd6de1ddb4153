"""A result in words: its summary, what its certificate proves, what it gains over a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stowplan.units import PS

if TYPE_CHECKING:
    from stowplan.kernel.result import Result


def summary(result: Result) -> str:
    """A few lines for people."""
    lines = [f"{result.provenance.program} on {result.provenance.target} ({result.provenance.cost_model})"]
    shown = result.unit.write_apart((result.objective, result.bound, result.certified_bound, *result.baselines.values()))
    if result.objective is None:
        lines.append(f"  no plan ({result.status}, stopped by {result.stop_reason})")
    else:
        how = "verified" if result.verified else "NOT verified"
        lines.append(f"  objective  {shown[result.objective]}  ({how}, by {result.provenance.candidate})")
    if result.bound is not None and result.unit.has_ratios:
        gap = "" if result.gap is None else f"  gap {format_gap(result.gap)}"
        lines.append(f"  bound      {shown[result.bound]}{gap}")
    if result.certificate is not None:
        lines.append(f"  certified  {certified(result, shown)}")
    lines.append(f"  status     {result.status}, stopped by {result.stop_reason} after {result.seconds:.1f} s")
    lines.extend(f"  {name:<9}  {result.details[name]}" for name in result.highlights if name in result.details)
    if "explanation" in result.details:
        lines.append(f"  because    {result.details['explanation']}")
    lines.extend(f"  assuming   {assumption}" for assumption in result.assumed)
    what = "speedup" if result.unit == PS else "ratio"
    for name, value in result.baselines.items():
        ratio = result.speedup_over(name)
        if not result.unit.has_ratios:
            lines.append(f"  baseline   {name}: {shown[value]}")
            continue
        given = f"{format_ratio(ratio)} over {name} ({shown[value]})" if ratio else ""
        lines.append(f"  {what:<9}  {given}" if given else f"  baseline   {name}")
    if "baseline" in result.provenance.options and (gain := gained(result)):
        lines.append(f"  gain       {gain}")
    lines.extend(f"  warning    {warning}" for warning in result.warnings)
    return "\n".join(lines)


def certified(result: Result, shown: Mapping[Any, str]) -> str:
    """What the certificate proves, for people; ``shown`` has values as they are written."""
    if not result.proof:
        return f"nothing: {result.certificate.proof.get('solver') or 'a solver'} is trusted"
    if result.certificate.bound is None:
        return f"no plan exists  (by {result.proof})"
    gap = result.certified_gap if result.unit.has_ratios else None
    gap_text = "" if gap is None else f"  gap {format_gap(gap)}"
    return f"{shown[result.certificate.bound]}{gap_text}  (by {result.proof})"


def gained(result: Result) -> str:
    """What the plan gains over the baseline, for people; empty where there is nothing to compare."""
    if result.baseline is None or result.objective is None:
        return ""
    if result.is_baseline:
        return f"none over {result.baseline_name}: nothing better was found, and this is its plan"
    if result.objective == result.baseline:
        return f"none over {result.baseline_name}: the plan is another of the same objective"
    if result.gain_percent is None:
        after, before = result.unit.write(result.objective), result.unit.write(result.baseline)
        return f"{after} in place of {before} of {result.baseline_name}"
    return f"{format_percent(result.gain_percent)} better than {result.baseline_name}"


def format_gap(gap: float) -> str:
    """A gap in per cent; only one that is closed is called 0."""
    return "< 0.01%" if 0 < gap < 0.0001 else f"{gap:.2%}"


def format_percent(percent: float) -> str:
    """Per cent with two decimals, or as many more as tell it from 0."""
    texts = (f"{percent:.{digits}f}" for digits in range(2, 9))
    return next((f"{text} %" for text in texts if percent == 0 or float(text) != 0), f"{percent:.1e} %")


def format_ratio(ratio: float) -> str:
    """A ratio with three decimals, or as many more as tell it from 1."""
    return next(
        (text for text in (f"{ratio:.{digits}f}" for digits in range(3, 10)) if ratio == 1 or float(text) != 1), "1.000"
    )
