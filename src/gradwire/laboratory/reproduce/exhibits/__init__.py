"""One function for each table and figure; files follow what they are about, not the study's order."""
