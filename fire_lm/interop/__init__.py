"""Exchange of models with Hugging Face: export and import."""
