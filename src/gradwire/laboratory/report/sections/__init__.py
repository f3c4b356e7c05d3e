"""The report's sections, one file each: records in, a `Section` out, or None where there is nothing to show."""
