"""The published study again: its tables, figures and claims, each beside the formula, our model and our records.

Agarwal et al., On the Utility of Gradient Compression in Distributed Training Systems, MLSys 2022, arXiv:2103.00543.
The figures themselves are not in the text that we have, so each number of theirs comes from prose, tables, captions
or the ticks of an axis; bars and curves are ours. `catalogue.EXHIBITS` lists what there is. No file here imports torch.
"""
