"""The export of models to Hugging Face model folders, and the import of models from them."""
