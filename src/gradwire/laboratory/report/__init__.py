"""Pictures and pages from numbers that are there: charts to show, and one self-contained report.

`chart` describes a picture, `plots` draws it as PNG or SVG, `page` as HTML; `document` makes the report of record
files. Nothing here needs torch, and a page is rebuilt from its records alone.
"""
