"""The commands of `failsoft`, one module each."""
