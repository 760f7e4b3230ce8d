"""A measuring process whose answers are known: the seconds of an op are a digest of what it is."""

import hashlib
import json
import os
import sys

asked, answered = (int(number) for number in sys.argv[2:])
with os.fdopen(asked) as requests, os.fdopen(answered, "w", buffering=1) as answers:
    answers.write(json.dumps({"id": 0, "ready": True}) + "\n")
    for line in requests:
        request = json.loads(line)
        number = request.pop("id")
        content = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).digest()
        seconds = (1 + int.from_bytes(content[:2], "big")) * 1e-6
        print("noise on standard output", flush=True)
        answers.write(json.dumps({"id": number, "seconds": seconds, "spread": 0.0, "blocks": 3}) + "\n")
