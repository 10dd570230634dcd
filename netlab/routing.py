"""The quickest ways to a node of a graph. Pure; `netlab.topology` makes routes of them."""

from __future__ import annotations

import heapq
from typing import TypeVar

EdgeT = TypeVar("EdgeT")

Graph = dict[str, list[tuple[int, str, EdgeT]]]
"""Of each node: cost, neighbour and the edge as seen from here, for every edge."""


def next_hops(graph: Graph[EdgeT], target: str) -> dict[str, EdgeT]:
    """For each node that reaches ``target``: the edge by which the quickest way goes on, as seen from its far end.

    Dijkstra's algorithm from the target; ties go to the fewer hops, then to the name, so that routes are reproducible.
    """
    best: dict[str, EdgeT] = {}
    done: set[str] = set()
    waiting: list[tuple[int, int, str]] = [(0, 0, target)]
    cost_of: dict[str, tuple[int, int]] = {target: (0, 0)}
    while waiting:
        cost, hops, node = heapq.heappop(waiting)
        if node in done:
            continue
        done.add(node)
        for weight, neighbour, edge in graph.get(node, []):
            candidate = (cost + weight, hops + 1)
            if neighbour not in done and candidate < cost_of.get(neighbour, (1 << 62, 0)):
                cost_of[neighbour] = candidate
                best[neighbour] = edge
                heapq.heappush(waiting, (*candidate, neighbour))
    best.pop(target, None)
    return best
