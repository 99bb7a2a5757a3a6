"""CUDA graphs: captured once, replayed many times on new inputs, several in one pool as servers keep them."""

from __future__ import annotations

from typing import Any

from check import Check, Red, module, run
from compare import same, within

BATCHES = (1, 2, 4, 8, 16, 32)
REPLAYS = 50
WIDTH = 1024
LIMIT_S = 120


def body(check: Check) -> None:
    """A two-layer network in bf16: what graphs give is what plain calls give, and what the CPU gives."""
    torch = module("torch")
    check.gpu(2)
    generator = torch.Generator().manual_seed(3)
    weights = [(torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5).to(torch.bfloat16) for _ in range(2)]
    on_gpu = [weight.cuda() for weight in weights]

    def network(x: Any, layers: list[Any]) -> Any:
        return torch.relu(x @ layers[0]) @ layers[1]

    graphs: dict[int, tuple[Any, Any, Any]] = {}
    pool = torch.cuda.graph_pool_handle()
    for batch in reversed(BATCHES):  # the largest first, so that the smaller ones use its memory
        with check.stage(f"capture a graph of batch {batch}", LIMIT_S):
            x = torch.zeros(batch, WIDTH, device="cuda", dtype=torch.bfloat16)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # libraries take their workspaces before the capture
                network(x, on_gpu)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                out = network(x, on_gpu)
            torch.cuda.synchronize()
            graphs[batch] = (graph, x, out)
    results = []
    for batch, (graph, x, out) in sorted(graphs.items()):
        outputs = []
        for _ in range(2):
            given = torch.randn(batch, WIDTH, generator=generator).to(torch.bfloat16)
            with check.stage(f"replay the graph of batch {batch}", LIMIT_S):
                x.copy_(given)
                graph.replay()
                torch.cuda.synchronize()
            got = out.clone()
            plain = network(given.cuda(), on_gpu)
            exact = network(given.double(), [weight.double() for weight in weights])
            # The hidden layer is rounded to bf16 too: up to 2**-8 of values about 1, and the weights sum to about that.
            bound = exact.abs() * 2**-8 + 2**-8 * 4
            results.append(within(f"graph of batch {batch}", got, exact, bound))
            plain = plain.double().cpu()
            within(f"graph of batch {batch} against the same calls without", got, plain, plain.abs() * 2**-7 + 2**-6)
            outputs.append(got)
        if torch.equal(outputs[0], outputs[1]):
            raise Red(f"graph of batch {batch}: two inputs give one output")
    with check.stage(f"replay {len(graphs)} graphs {REPLAYS} times in turn", LIMIT_S):
        first = {}
        for turn in range(REPLAYS):
            for batch, (graph, _, out) in graphs.items():
                graph.replay()
                got = out.clone()
                if turn == 0:
                    first[batch] = got
                else:
                    same(f"graph of batch {batch}, replay {turn} against the first", got, first[batch])
        torch.cuda.synchronize()
    check.facts["results"] = results


if __name__ == "__main__":
    run("cuda_graph", __doc__ or "", body)
