"""TorchInductor: its input graphs, and its lowering under decisions. The only folder that knows its internals."""
