"""TorchInductor: what it is given, and its lowering under decisions. The only folder that knows its internals."""
