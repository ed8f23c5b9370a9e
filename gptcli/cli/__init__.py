"""The command line: options in, one answer on stdout."""
