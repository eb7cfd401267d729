"""KVBM's names for TensorRT-LLM. The connector needs TensorRT-LLM; consolidator_config does not."""
