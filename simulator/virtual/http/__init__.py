"""The engines behind HTTP: vLLM's OpenAI server and RL endpoints, SGLang's native ones; without a
socket (httpx, aiohttp) or with one (`rollcast serve`)."""
