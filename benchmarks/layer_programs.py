"""Small programs of today's layers in the operators of the vocabulary, as exporters write them: for rule_matches.py."""

from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program

Builder = ProgramBuilder


def _norm(b: Builder, x: int) -> int:
    width = b.shape(x)[-1]
    return b.op("layer_norm", 1e-5, inputs=(x, b.weight(width), b.weight(width)))


def _indices(b: Builder, name: str, *shape: int) -> int:
    return b.op("weight", name, shape, "int64")


def _number(b: Builder, value: float) -> int:
    return b.op("fill", value, ())


def _part(b: Builder, x: int, axis: int, sizes: tuple[int, ...], index: int) -> int:
    return b.op("item", index, inputs=(b.op("split", axis, sizes, inputs=(x,)),))


def _dense(b: Builder, x: int, width: int) -> int:
    return b.add(b.linear(x, width), b.weight(width))


def decoder(length: int = 8, width: int = 32) -> Program:
    """Embeddings of few dimensions, projected; one product for q, k and v; only the last token is read."""
    b = Builder()
    words = b.op("gather", 0, inputs=(b.weight(50, 16), b.input((length,), "int64")))
    table = b.op("gather", 0, inputs=(b.weight(99, width), _indices(b, "places", 64)))
    x = b.add(b.linear(words, width), b.op("gather", 0, inputs=(table, b.input((length,), "int64"))))
    x = b.reshape(_norm(b, b.reshape(x, 1, length, width)), length, width)
    three = b.mul(_dense(b, x, 3 * width), _number(b, 0.5))
    parts = [_part(b, three, 1, (width,) * 3, i) for i in range(3)]
    q, k, v = (b.transpose(b.reshape(p, length, 4, width // 4), 1, 0, 2) for p in parts)
    scores = b.op("softmax", 2, inputs=(b.mul(b.matmul(q, b.transpose(k, 0, 2, 1)), _number(b, 0.3)),))
    mixed = b.reshape(b.transpose(b.matmul(scores, v), 1, 0, 2), length, width)
    x = _norm(b, b.add(x, b.linear(mixed, width)))
    last = _part(b, x, 0, (length - 1, 1), 1)
    probabilities = b.op("softmax", 1, inputs=(b.linear(last, 50),))
    return b.build(probabilities, b.reshape(_part(b, x, 0, (1, length - 1), 0), 1, 1, width))


def windows(tokens: int = 16, width: int = 24) -> Program:
    """Tokens in windows that are shifted by indices, normalised with factors of their own, heads apart, then joined."""
    b = Builder()
    x = b.input((1, tokens, width))
    y = b.mul(_norm(b, b.op("gather", 1, inputs=(x, _indices(b, "shift", tokens)))), b.weight(width))
    y = b.op("gather", 1, inputs=(y, _indices(b, "back", tokens)))
    heads = []
    for _ in range(2):
        q, k = (b.linear(y, 8) for _ in range(2))
        heads.append(b.op("softmax", 2, inputs=(b.matmul(q, b.transpose(k, 0, 2, 1)),)))
    both = b.concat(1, *heads)
    first, second = (_part(b, both, 1, (tokens, tokens), i) for i in range(2))
    mixed = b.add(b.matmul(first, y), b.matmul(second, y))
    one, two = (_indices(b, name, 4) for name in ("one", "two"))
    picked = b.concat(1, b.op("gather", 1, inputs=(mixed, one)), b.op("gather", 1, inputs=(mixed, two)))
    twice = b.add(b.op("gather", 1, inputs=(x, one)), b.op("gather", 1, inputs=(mixed, one)))
    scale, bias = b.weight(width), b.weight(width)
    alike = [b.op("layer_norm", 1e-5, inputs=(part, scale, bias)) for part in (picked, twice)]
    rest = _part(b, b.op("gather", 1, inputs=(x, two)), 1, (1, 3), 1)
    return b.build(b.concat(1, *alike), b.add(rest, _number(b, 0.0)))


def channels_last(size: int = 8) -> Program:
    """Convs of channels first among ops of channels last, as TensorFlow's exporters write them."""
    b = Builder()
    to, back = (0, 2, 3, 1), (0, 3, 1, 2)
    x = b.mul(b.input((1, size, size, 4)), _number(b, 0.004))
    first = b.transpose(b.conv(b.transpose(x, *back), 8, 3), *to)
    second = b.transpose(b.conv(b.transpose(b.unary("relu", first), *back), 8, 3), *to)
    both = b.mul(b.add(first, second), _number(b, 2.0))
    joined = b.concat(3, _norm(b, both), second, first)
    parts = [_part(b, joined, 3, (8, 8, 8), i) for i in range(3)]
    inner = b.op("pad", (0, 1, 1, 0), (0, 0, 0, 0), inputs=(parts[0],))
    padded = b.op("pad", (0, 0, 0, 0), (0, 1, 1, 0), inputs=(inner,))
    deep = b.transpose(b.conv(b.unary("relu", b.transpose(padded, *back)), 8, 3, same=False), *to)
    mask = b.op("softmax", 3, inputs=(b.transpose(b.conv(b.transpose(parts[1], *back), 6, 1), *to),))
    picked = b.op("gather", 3, inputs=(b.transpose(b.transpose(parts[2], *back), *to), _indices(b, "order", 8)))
    normal = b.transpose(_norm(b, b.transpose(mask, 0, 2, 1, 3)), 0, 2, 1, 3)
    whole = b.concat(3, deep, *[_part(b, deep, 3, (2, 2, 4), i) for i in (0, 1)], picked)
    return b.build(b.transpose(whole, *back), b.transpose(normal, *back), b.transpose(mask, *back))


def inception_padded(size: int = 12) -> Program:
    """Branches that are padded alike and joined, channels that are cut, pooled and scaled."""
    b = Builder()
    x = b.mul(b.input((1, 4, size, size)), _number(b, 0.1))
    before, after = (0, 0, 1, 1), (0, 0, 0, 1)
    left, right = (b.op("pad", before, after, inputs=(b.mul(b.conv(x, 4, k), _number(b, 0.5)),)) for k in (1, 3))
    total = b.unary("relu", b.add(left, right))
    joined = b.concat(1, left, right, b.op("pad", before, after, inputs=(x,)))
    pooled = b.pool("avg", b.mul(b.concat(1, total, left), _number(b, 0.5)), 3, 1)
    wide = b.conv(joined, 12, 3)
    some = _part(b, _part(b, wide, 1, (8, 4), 0), 1, (3, 5), 1)
    cut = _part(b, b.concat(1, wide, pooled), 1, (5, 15), 0)
    swapped = b.transpose(b.pool("max", b.transpose(wide, 1, 0, 2, 3), 2, 2), 1, 0, 2, 3)
    return b.build(b.add(total, _number(b, 0.0)), some, cut, pooled, swapped)


def rows(batch: int = 6, width: int = 16) -> Program:
    """Batches that are flattened, cut and joined again, with a single token where an axis of one is moved."""
    b = Builder()
    x = b.input((batch, 2, width))
    folded = b.linear(b.reshape(b.reshape(x, batch * 2, width), batch, 2, width), width)
    y = b.op("softmax", 1, inputs=(_norm(b, b.reshape(folded, batch * 2, width)),))
    halves = [_part(b, b.reshape(b.input((batch, 4, 8)), batch, 32), 0, (2, 4), i) for i in (0, 1)]
    joined = b.concat(0, b.reshape(b.input((2, 4, 8)), 2, 32), b.reshape(b.input((3, 4, 8)), 3, 32))
    token = b.transpose(b.reshape(b.input((1, width)), 1, 1, 4, width // 4), 0, 2, 1, 3)
    keys = b.input((1, 4, 5, width // 4))
    scores = b.op("softmax", 3, inputs=(b.matmul(token, b.transpose(keys, 0, 1, 3, 2)),))
    ones, others = b.transpose(keys, 1, 0, 2, 3), b.transpose(b.input((1, 4, 4, 5)), 1, 0, 2, 3)
    first = _part(b, y, 0, (2, 2 * batch - 2), 0)
    return b.build(b.reshape(y, batch, 2, width), first, *halves, joined, scores, b.matmul(others, ones))


LAYERS = {made.__name__: made for made in (decoder, windows, channels_last, inception_padded, rows)}
