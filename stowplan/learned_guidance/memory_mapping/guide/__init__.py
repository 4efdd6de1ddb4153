"""A learned guide of memory mapping: values for every access of a program, before any relaxation is solved."""
