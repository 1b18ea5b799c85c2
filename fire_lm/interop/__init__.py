"""The export of models to Hugging Face folders, and the import of models from such folders."""
