"""The laboratory: what measures, trains and checks, beside the library that people train with.

- `hosts`: a slow network on one machine, made of network namespaces.
- `bench`: measurements and trainings that write records.
- `report`: charts and pages made from records.
- `reproduce`: the papers' tables and claims beside our records.
"""
