"""Policies of ``jax.checkpoint``, which say which values a part of a program saves for its backward pass.

A policy is either one of jax's own or a list of names of values. A program is divided into *parts*, such as scans and repeated
layers, and each part gets the policy. Jax is imported only when :meth:`Policy.rule` is called. Nothing else in this module can
raise an error.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

#: Kinds of policies:
#:
#: - ``as_it_is`` adds no policy, and ``everything_again`` saves nothing
#: - ``dots`` saves the results of all matrix products, and ``dots_no_batch`` only of products without batch dimensions
#: - ``names`` saves the values that the program has named by ``checkpoint_name``
#: - ``offload_names`` sends the values that ``names`` saves to the host's memory, and ``offload_dots`` those of
#:   ``dots_no_batch``
#: - with ``planned``, stowplan gives a name to each value and chooses among all of them; with ``planned_own_names``, it chooses
#:   among the values that the program has named
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

#: From a kind that is a policy of jax's own to the values that it saves or offloads, as one of the words in
#: :attr:`stowplan.backends.jax.graph.Node.traits`. The word of ``as_it_is`` is empty, because without a policy all values that
#: the backward pass reads are saved.
STOCK: dict[Kind, str] = {
    "as_it_is": "",
    "dots": "dots",
    "dots_no_batch": "dots_no_batch",
    "names": "names",
    "offload_names": "names",
    "offload_dots": "dots_no_batch",
}

#: Policies that are attributes of ``jax.checkpoint_policies``, by the names of these attributes. The other policies are results
#: of its functions.
_PLAIN: dict[Kind, str] = {
    "everything_again": "nothing_saveable",
    "dots": "dots_saveable",
    "dots_no_batch": "dots_with_no_batch_dims_saveable",
}
#: Arguments of jax's functions for offloading: from the memory of the device to pinned memory of the host.
_HOST = {"offload_src": "device", "offload_dst": "pinned_host"}

#: The value of MaxText that can be kept on the device or offloaded, but not recomputed.
_MAXTEXT_KEPT = "decoder_layer_input"


class Policy(msgspec.Struct, frozen=True):
    """A policy of ``jax.checkpoint`` for all parts of a program; ``as_it_is`` leaves the program unchanged."""

    kind: Kind
    """How saved values are selected."""
    names: tuple[str, ...] = ()
    """Names of the values that are saved, or offloaded to the host; empty for the kinds that select values without names."""

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
        """Whether its names are names that the program itself gives to values, not names of stowplan's."""
        return self.kind in ("names", "offload_names", "planned_own_names")

    def is_same(self, other: Policy) -> bool:
        """Whether both policies make the same program.

        A plan that saves all of a program's names equals jax's policy ``names``.
        """
        return self.text == other.text and (self.kind == "planned") == (other.kind == "planned")

    def rule(self) -> Any:
        """Returns the policy as an argument for ``jax.checkpoint``. The kind must not be ``as_it_is``, which has none."""
        import jax

        if self.kind in _PLAIN:
            return getattr(jax.checkpoint_policies, _PLAIN[self.kind])
        function, values, keywords = self._call()
        return getattr(jax.checkpoint_policies, function)(*values, **keywords)

    @property
    def text(self) -> str:
        """The policy as Python code, to paste into a program; ``None`` for the kind ``as_it_is``."""
        if self.kind == "as_it_is":
            return "None"
        if self.kind in _PLAIN:
            return f"jax.checkpoint_policies.{_PLAIN[self.kind]}"
        function, values, keywords = self._call()
        arguments = [*map(repr, values), *(f"{name}={value!r}" for name, value in keywords.items())]
        return f"jax.checkpoint_policies.{function}({', '.join(arguments)})"

    def _call(self) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        """Returns how jax makes the policy.

        These are the name of a function in ``jax.checkpoint_policies``, and its positional and keyword arguments.
        """
        if self.kind == "offload_dots":
            return "offload_dot_with_no_batch_dims", (), _HOST
        if self.kind == "offload_names":
            lists = {"names_which_can_be_saved": [], "names_which_can_be_offloaded": list(self.names)}
            return "save_and_offload_only_these_names", (), lists | _HOST
        return "save_only_these_names", self.names, {}

    def maxtext(self, own_names: tuple[str, ...]) -> list[str]:
        """Returns lines for the configuration of MaxText, a library of language models on jax.

        The first line selects MaxText's policy ``custom``. Then there is one line for each name of ``own_names``, the names
        that the program itself gives to values. Whether MaxText accepts these lines is not checked: it knows a fixed list of
        names. MaxText cannot compute ``decoder_layer_input`` again, which is the input of a layer. If the policy does not save
        this value, its line is a comment that says so.
        """
        action = "offload" if self.is_offloaded else "device"
        lines = ["remat_policy: custom"]
        for name in own_names:
            if name == _MAXTEXT_KEPT and name not in self.names:
                # A layer is computed again from its input, so MaxText refuses ``remat`` for it and keeps it on the device.
                lines.append(f"# {name} is kept on the device, as MaxText cannot compute it again")
            else:
                lines.append(f"{name}: {action if name in self.names else 'remat'}")
        return lines
