"""Policies of ``jax.checkpoint``, which say what a part of a program saves for its backward pass.

They are jax's own policies, and lists of names of values. Jax is imported only when :meth:`Policy.rule` is called.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal[
    "as_it_is",
    "everything_again",
    "dots",
    "dots_no_batch",
    "names",
    "offload_names",
    "offload_dots",
    "planned",
    "planned_own_names",
]

#: Jax's own policies in the order in which they are tried, with the trait of the values that they save (``graph.Node.traits``).
STOCK: dict[Kind, str] = {
    "as_it_is": "",
    "dots": "dots",
    "dots_no_batch": "dots_no_batch",
    "names": "names",
    "offload_names": "names",
    "offload_dots": "dots_no_batch",
}

#: Policies that are an attribute of ``jax.checkpoint_policies`` without arguments.
_PLAIN: dict[Kind, str] = {
    "everything_again": "nothing_saveable",
    "dots": "dots_saveable",
    "dots_no_batch": "dots_with_no_batch_dims_saveable",
}
_HOST = {"offload_src": "device", "offload_dst": "pinned_host"}


class Policy(msgspec.Struct, frozen=True):
    """A policy of ``jax.checkpoint`` for all parts of a program; ``as_it_is`` leaves the program unchanged."""

    kind: Kind
    names: tuple[str, ...] = ()
    """Names of the values that are saved, or offloaded to the host."""

    @property
    def is_offloaded(self) -> bool:
        """Whether values are offloaded to the host's memory."""
        return self.kind in ("offload_names", "offload_dots")

    @property
    def is_planned(self) -> bool:
        """Whether stowplan has chosen the names."""
        return self.kind in ("planned", "planned_own_names")

    @property
    def is_of_own_names(self) -> bool:
        """Whether its names are those that the program itself gives to values."""
        return self.kind in ("names", "offload_names", "planned_own_names")

    def is_same(self, other: Policy) -> bool:
        """Whether both policies make the same program.

        A plan that saves all of a program's names equals jax's policy ``names``.
        """
        return self.text == other.text and (self.kind == "planned") == (other.kind == "planned")

    def rule(self) -> Any:
        """The policy as an argument for ``jax.checkpoint``."""
        import jax

        if self.kind in _PLAIN:
            return getattr(jax.checkpoint_policies, _PLAIN[self.kind])
        function, values, named = self._call()
        return getattr(jax.checkpoint_policies, function)(*values, **named)

    @property
    def text(self) -> str:
        """The policy as Python code, to paste into a program."""
        if self.kind == "as_it_is":
            return "None"
        if self.kind in _PLAIN:
            return f"jax.checkpoint_policies.{_PLAIN[self.kind]}"
        function, values, named = self._call()
        given = [*map(repr, values), *(f"{name}={value!r}" for name, value in named.items())]
        return f"jax.checkpoint_policies.{function}({', '.join(given)})"

    def _call(self) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        """The function of ``jax.checkpoint_policies`` that makes the policy, and its positional and keyword arguments."""
        if self.kind == "offload_dots":
            return "offload_dot_with_no_batch_dims", (), _HOST
        if self.kind == "offload_names":
            lists = {"names_which_can_be_saved": [], "names_which_can_be_offloaded": list(self.names)}
            return "save_and_offload_only_these_names", (), lists | _HOST
        return "save_only_these_names", self.names, {}

    def maxtext(self, own_names: tuple[str, ...]) -> list[str]:
        """Lines of MaxText's configuration; ``own_names`` are the names that the program itself gives to values."""
        chosen = "offload" if self.is_offloaded else "device"
        return ["remat_policy: custom", *(f"{name}: {chosen if name in self.names else 'remat'}" for name in own_names)]
