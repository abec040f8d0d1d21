"""sandboxctl: what an operator does at the command line, as the user that runs the keeper."""
