"""The claims of four papers, a file or two each, with the rules that decide; `catalogue.PAPERS` lists them all."""
