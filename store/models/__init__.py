"""Model files: header, tokenizer, chat template, catalog, preparing. All input here is untrusted."""
