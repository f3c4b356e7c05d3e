"""The findings of four papers, one file each, with the rules that decide."""
