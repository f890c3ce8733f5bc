"""One set of laws that every policy and every world keeps."""
