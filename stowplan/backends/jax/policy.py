"""What a part of a program saves for its backward pass: jax's own policies, and lists of names. No jax until asked for."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal["as_it_is", "everything_again", "dots", "dots_no_batch", "names", "offload_names", "offload_dots", "planned"]

#: Policies that jax has, in the order in which they are tried; those over names only where the program has names.
STOCK: tuple[Kind, ...] = ("as_it_is", "dots", "dots_no_batch", "names", "offload_names", "offload_dots")

_DOTS = {
    "everything_again": "nothing_saveable",
    "dots": "dots_saveable",
    "dots_no_batch": "dots_with_no_batch_dims_saveable",
}
_HOST = ("device", "pinned_host")


class Policy(msgspec.Struct, frozen=True):
    """A policy of ``jax.checkpoint`` for all parts of a program; ``as_it_is`` leaves the program alone."""

    kind: Kind
    names: tuple[str, ...] = ()
    """What is saved, or offloaded to the host."""

    def rule(self) -> Any:
        """The policy as ``jax.checkpoint`` takes it."""
        import jax

        policies = jax.checkpoint_policies
        if self.kind in _DOTS:
            return getattr(policies, _DOTS[self.kind])
        if self.kind == "offload_dots":
            return policies.offload_dot_with_no_batch_dims(*_HOST)
        if self.kind == "offload_names":
            return policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=list(self.names),
                offload_src=_HOST[0],
                offload_dst=_HOST[1],
            )
        return policies.save_only_these_names(*self.names)

    @property
    def text(self) -> str:
        """The policy in jax's words, to paste."""
        policies = "jax.checkpoint_policies"
        if self.kind == "as_it_is":
            return "None"
        if self.kind in _DOTS:
            return f"{policies}.{_DOTS[self.kind]}"
        if self.kind == "offload_dots":
            return f"{policies}.offload_dot_with_no_batch_dims{_HOST}"
        if self.kind == "offload_names":
            return (
                f"{policies}.save_and_offload_only_these_names(names_which_can_be_saved=[], "
                f"names_which_can_be_offloaded={list(self.names)}, offload_src={_HOST[0]!r}, offload_dst={_HOST[1]!r})"
            )
        return f"{policies}.save_only_these_names({', '.join(map(repr, self.names))})"
