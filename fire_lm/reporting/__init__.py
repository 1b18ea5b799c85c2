"""Tables, figures and the report page, produced from result files."""
