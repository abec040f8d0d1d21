"""The `sandbox` command-line program: one module for each thing it does, put together in `main`."""
