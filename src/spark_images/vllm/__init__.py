"""What a release of vLLM fetches and knows by name, read from its own source; none of it is run."""
