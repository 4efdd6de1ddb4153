"""A kind of problem and a format of files, each one folder or file and one registration."""
