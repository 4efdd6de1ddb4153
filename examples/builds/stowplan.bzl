"""plan_header: offsets of a packing as a C header, planned again where the sources have changed, and only then."""

def plan_header(name, src, deps = [], options = [], **kwargs):
    """Writes NAME.h.

    Args:
        name: what identifiers of the header begin with.
        src: the model.
        deps: whatever else it is planned from: target files, tables, hints. Bazel takes no depfile; it wants them here.
        options: further options of `stowplan solve`.
        **kwargs: as of every rule.
    """
    native.genrule(
        name = name,
        srcs = [src] + deps,
        outs = [name + ".h"],
        # Deterministic: the same sources give the same bytes, wherever they are planned.
        cmd = "stowplan solve $(location {src}) --deterministic --time-limit 2 --quiet {options} --emit c-header -o $@ >&2".format(
            src = src,
            options = " ".join(options),
        ),
        **kwargs
    )
