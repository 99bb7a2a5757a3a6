"""What fits what, per release of vLLM, FlashInfer and NGC's base: facts of images/compat.yaml, rules around them."""
