"""ragload: load tests for retrieval-augmented generation. Imported in every process, so empty."""
