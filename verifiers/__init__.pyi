# The package is the host's. This stub tells type checkers that the folder here and the one in
# site-packages are one package; the wheel leaves it out.
__version__: str
