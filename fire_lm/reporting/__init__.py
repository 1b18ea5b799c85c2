"""Tables, figures and report pages, produced from result files."""
