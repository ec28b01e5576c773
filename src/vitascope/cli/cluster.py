"""``vitascope cluster``: the machines of a Ray cluster, and what they work on."""

from dataclasses import asdict

from cyclopts import App

from vitascope.cli.options import Switch
from vitascope.observe.terminal import Page

app = App(
    name="cluster",
    help="See the machines that share videos with segment --cluster.",
    help_format="plaintext",
)


@app.command
def status(*, address: str = "auto", json: Switch = False) -> None:
    """Show the nodes of a cluster, and the progress of its videos.

    Args:
        address: The cluster: auto (this machine's), HOST:PORT or ray://HOST:PORT.
        json: Print as JSON.
    """
    from vitascope.segmentation.processes.cluster import (
        CLUSTER_NAMESPACE,
        cluster_at,
        films_at_work,
        nodes_of,
    )

    with cluster_at(address) as ray:
        nodes, films = nodes_of(ray), films_at_work(ray, namespace=CLUSTER_NAMESPACE)
    page = Page()
    if json:
        page.print_json(data={"nodes": [*map(asdict, nodes)], "films": [film.to_dict() for film in films]})
        return
    for node in nodes:
        page.print_lines(f"{node.label}: {node.cores} cores, {node.gpus} GPUs")
    for film in films:
        page.print_lines(film.line())
    if not films:
        page.print("no video is being made")
