"""TorchInductor's code for a program and a set of stored values, predicted from the program's loops."""
