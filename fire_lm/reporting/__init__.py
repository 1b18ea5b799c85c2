"""Tables and pictures from result files."""
