"""Watches a search while it runs: new steps, pruned branches, the answer; then draws its tree with networkx.

python examples/watch_a_search.py                the drawing is tree.png (pip install matplotlib)
"""

import networkx as nx

from reason import Solution, load
from search.selection import Selection
from search.tree import SearchTree

QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."


def draw_tree(solution: Solution, file: str) -> None:
    """Draws the tree level by level; darker nodes have higher scores, the chosen path is red."""
    from matplotlib import pyplot

    graph = solution.tree.to_networkx()
    places = nx.multipartite_layout(graph, subset_key="depth")
    best = [] if solution.result.best is None else [*solution.tree.path_nodes(solution.result.best)]
    chosen = set(zip([SearchTree.ROOT, *best], best, strict=False))
    nx.draw_networkx(
        graph,
        places,
        node_color=[score if (score := graph.nodes[node].get("score")) else 0.0 for node in graph],
        cmap="Greys",
        edgecolors="black",
        edge_color=["tab:red" if edge in chosen else "lightgrey" for edge in graph.edges],
        font_color="tab:blue",
    )
    pyplot.savefig(file)


def main() -> None:
    with load("search=rebase", "search.n=8", "speculation=off") as solver:
        for event in solver.stream(QUESTION):
            if isinstance(event, Solution):
                print("answer", event.answer, "of", event.votes)
                draw_tree(event, "tree.png")
            elif isinstance(event, Selection):
                print("continued", sum(width > 0 for width in event.widths), "of", len(event.nodes), "branches")
            else:
                print("step", "".join(step.text for step in event.steps).strip(), "| score", event.score)


if __name__ == "__main__":
    main()
