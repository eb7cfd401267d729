"""The front door before real vLLM servers and the official OpenAI client."""
