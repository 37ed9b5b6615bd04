# The package is the host's: see verifiers/__init__.pyi.
