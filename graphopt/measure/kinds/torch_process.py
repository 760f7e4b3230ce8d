"""What every kind that runs torch does once in its process."""

import torch


def begin(threads: int) -> None:
    """Gradients are not recorded, here and from now on."""
    torch.set_num_threads(threads)
    torch.inference_mode().__enter__()  # type: ignore[no-untyped-call]
