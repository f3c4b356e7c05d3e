"""Elements that may be among the largest of a long row: what a selection on a GPU looks at after one pass over all."""
