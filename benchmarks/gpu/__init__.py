"""What `benchmarks.gpu_cases` forecasts and measures."""
