"""What four papers say, beside our records, our model and, of one of them, its own formula.

- `catalogue`: the papers, their claims, and the exhibits of one of them, by id.
- `claim`, `evidence`: what a claim and its verdict are, and what it is checked against.
- `claims/`: the claims of each paper with the rules that decide; `grace`, `throughput` and `accordion` hold the numbers
  that are published, `contradictions` where papers contradict themselves.
- `formula`, `inputs`, `setup`, `ours`, `study`, `exhibits/`: the study on utility again (Agarwal et al., On the Utility
  of Gradient Compression in Distributed Training Systems, MLSys 2022, arXiv:2103.00543), table by table.
- `testbed`: the cluster of Beyond Throughput in our model.

Figures themselves are not in the texts that we have, so each published number comes from prose, tables, captions or the
ticks of an axis. No file here imports torch, but `testbed` has codecs traced that are not shipped.
"""
