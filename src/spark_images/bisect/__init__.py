"""Which version, or which pins together, broke it: candidates, tries, what is remembered of them, and the report."""
