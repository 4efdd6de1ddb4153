"""Components of graphs, in plain Python: for loop bodies, importing a library takes longer than all else that is done."""

from __future__ import annotations

from collections.abc import Sequence


def strong_components(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """A label of each node's strongly connected component (Tarjan 1972, without recursion).

    Parameters
    ----------
    count
        Nodes, numbered from 0.
    pairs
        Edges, from and to; any of them may be there twice.
    """
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in pairs:
        targets[source].append(target)
    label, number, low = [-1] * count, [-1] * count, [0] * count
    stack: list[int] = []
    reached = 0
    for root in range(count):
        if number[root] >= 0:
            continue
        number[root] = low[root] = reached
        reached += 1
        stack.append(root)
        path = [(root, iter(targets[root]))]
        while path:
            node, rest = path[-1]
            for target in rest:
                if number[target] < 0:
                    number[target] = low[target] = reached
                    reached += 1
                    stack.append(target)
                    path.append((target, iter(targets[target])))
                    break
                if label[target] < 0:
                    low[node] = min(low[node], number[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    while label[node] < 0:
                        label[stack.pop()] = node
    return label
