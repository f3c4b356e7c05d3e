"""A folder for PYTHONPATH: Python runs the `sitecustomize` in it when it starts."""
