"""Pictures, the HTML report and readable dumps of plans."""
