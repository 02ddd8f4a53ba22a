"""Runs a `.nb` file in stock Paddle Lite, as a child of `edge_kit.stock`.

A script that stands alone: its Python has paddlelite and NumPy below 2, and nothing of the kit.

    python stock_worker.py FILE

First a line on stdout: "ready" once the file is open, or "unfit" with the reason behind it. From then on a
message on stdin or stdout is a little-endian u64 length and an .npz archive of that many bytes. Requests hold
`command` and `session`:

    forward  input_ids int64 [T], positions int64 [T], mask fp32 [T, S] and cache_shapes int64 [2 * layers, 2]
             (KV and D of each cache; a session starts with empty ones); gives logits fp32 [T, vocabulary]
    cut      length, of a session that has run
    free
"""

import io
import os
import struct
import sys

LENGTH = struct.Struct("<Q")


def read_message(stream):
    """A dict of arrays, or None where the stream ends."""
    import numpy as np

    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    body = stream.read(size)
    if len(body) < size:
        return None
    with np.load(io.BytesIO(body), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def write_message(stream, **arrays):
    import numpy as np

    body = io.BytesIO()
    np.savez(body, **arrays)
    stream.write(LENGTH.pack(body.tell()))
    stream.write(body.getbuffer())
    stream.flush()


class Worker:
    def __init__(self, path):
        from paddlelite.lite import MobileConfig, create_paddle_predictor

        config = MobileConfig()
        config.set_model_from_file(path)
        self.predictor = create_paddle_predictor(config)
        self.caches = {}  # session -> key, value of each layer in turn, fp32 [KV, P, D]

    def forward(self, request):
        import numpy as np

        session = int(request["session"])
        cache = self.caches.get(session)
        if cache is None:
            cache = [np.zeros((heads, 0, dim), np.float32) for heads, dim in request["cache_shapes"]]
        feeds = [request["input_ids"], request["positions"], request["mask"]] + cache
        for i, array in enumerate(feeds):
            self.predictor.get_input(i).from_numpy(np.ascontiguousarray(array))
        self.predictor.run()
        outputs = [self.predictor.get_output(i).numpy().copy() for i in range(1 + len(cache))]
        self.caches[session] = outputs[1:]
        return {"logits": outputs[0]}

    def cut(self, request):
        session, length = int(request["session"]), int(request["length"])
        self.caches[session] = [past[:, :length] for past in self.caches[session]]
        return {"done": True}

    def free(self, request):
        self.caches.pop(int(request["session"]), None)
        return {"done": True}


def check_packages():
    """A message if this Python cannot be the judge, else None."""
    python = f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]})"
    try:
        import numpy
    except ImportError:
        return f"{python} has no numpy"
    if int(numpy.__version__.split(".")[0]) >= 2:
        return f"{python} has numpy {numpy.__version__}, from which paddlelite reads garbage without a word"
    try:
        import paddlelite.lite  # noqa: F401
    except ImportError as error:
        return f"{python} cannot import paddlelite: {error}"
    return None


def main():
    # Paddle Lite prints to fd 1; the messages keep the real stdout for themselves.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    problem = check_packages()
    if problem:
        answers.write(b"unfit " + problem.encode("utf-8") + b"\n")
        answers.flush()
        return 3
    worker = Worker(sys.argv[1])
    answers.write(b"ready\n")
    answers.flush()
    while True:
        request = read_message(sys.stdin.buffer)
        if request is None:
            return 0
        write_message(answers, **getattr(worker, str(request["command"]))(request))


if __name__ == "__main__":
    sys.exit(main())
