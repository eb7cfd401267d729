"""KVBM's names for vLLM. The connectors need vLLM; consolidator_config does not."""
